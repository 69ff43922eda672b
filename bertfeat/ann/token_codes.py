"""Codes of the tokens of documents, in a mapped file, and late interaction: MaxSim of the tokens of queries with them.

The MaxSim of a query and a document (Khattab and Zaharia 2020, arXiv 2004.12832) is the sum, over the tokens of the
query, of the weight of a token times its highest cosine with a token of the document. Vectors are centred first: those
of BERT-like models have much in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.ragged import begins_run, ragged_arange, starts_of
from bertfeat.records import Float32Array, IntArray
from bertfeat.vectors.nearest import unit_length

# Values of the documents of one product: 16 MB of float32.
_BLOCK_VALUES = 4 << 20
# Queries per document from which on a product of one document is quicker.
_SHARED = 3
# The values of each byte of bit codes, float32 (256, 8).
_SIGNS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1


class CodeKind(StrEnum):
    """How a value of a token's vector is stored."""

    BIT = "bit"  # its sign
    INT8 = "int8"  # with one scale per token
    FLOAT16 = "float16"


def code_type(kind: CodeKind, dim: int) -> np.dtype[Any]:
    """Return the type of the code of one token."""
    if kind is CodeKind.FLOAT16:
        return np.dtype([("values", "<f2", (dim,))])
    if kind is CodeKind.INT8:
        return np.dtype([("scale", "<f4"), ("values", "i1", (dim,))])
    return np.dtype([("values", "u1", ((dim + 7) // 8,))])


def centred(vectors: npt.NDArray[Any], mean: Float32Array) -> Float32Array:
    """Return vectors (n, dim) without their mean, float32 (dim,), at length 1; a zero vector stays zero."""
    return unit_length(vectors.astype(np.float32) - mean)


def encode(units: Float32Array, kind: CodeKind) -> npt.NDArray[Any]:
    """Return the codes, (n,) of `code_type`, of centred vectors, float32 (n, dim)."""
    codes = np.empty(len(units), code_type(kind, units.shape[1]))
    if kind is CodeKind.FLOAT16:
        codes["values"] = units
    elif kind is CodeKind.INT8:
        codes["scale"] = np.abs(units).max(axis=1, initial=0) / 127
        # A vector of zeros has the scale 0.
        codes["values"] = np.rint(units / np.where(codes["scale"] > 0, codes["scale"], 1)[:, None])
    else:
        codes["values"] = np.packbits(units >= 0, axis=1)
    return codes


def decode(codes: npt.NDArray[Any], kind: CodeKind, dim: int) -> tuple[Float32Array, Float32Array]:
    """Return the vectors of codes (n,), float32 (n, dim), and a factor for each, float32 (n,)."""
    if kind is CodeKind.BIT:
        # `clip` spares numpy the check of each index, and a copy.
        values = np.take(_SIGNS, codes["values"], axis=0, mode="clip")
        return values.reshape(len(codes), 8 * values.shape[1])[:, :dim], np.full(len(codes), dim**-0.5, np.float32)
    values = codes["values"].astype(np.float32)
    return values, codes["scale"] if kind is CodeKind.INT8 else np.ones(len(codes), np.float32)


class QueryTokens(NamedTuple):
    """The tokens of queries, in order: their centred vectors, weights that add up to 1 for each query, and borders."""

    vectors: Float32Array  # (n_tokens, dim)
    weights: Float32Array  # (n_tokens,)
    offsets: IntArray  # (n_queries + 1,)


class TokenCodes:
    """The codes of all tokens, (n_tokens,), a mapped file; `places`, int64 (n_documents, 2), bound those of each text.

    Texts may share tokens.
    """

    def __init__(self, codes: npt.NDArray[Any], places: IntArray, mean: Float32Array, kind: CodeKind) -> None:
        self.codes = codes
        self.starts = places[:, 0]
        self.lengths = places[:, 1] - places[:, 0]
        self.mean = mean
        self.kind = kind

    def maxsim(self, queries: QueryTokens, query: IntArray, document: IntArray) -> Float32Array:
        """Return the MaxSim of pairs of a query and a document, float32 (n_pairs,), NaN for a document without tokens.

        `query` and `document`, int64 (n_pairs,), have no pair twice.
        """
        scores = np.full(len(query), np.nan, np.float32)
        order = np.lexsort((query, document))
        order = order[self.lengths[document[order]] > 0]
        groups = [order]
        if len(order) < _SHARED * np.count_nonzero(begins_run(document[order])):
            # A document has few queries: a query with many documents is a larger product.
            by_query = order[np.argsort(query[order], kind="stable")]
            groups = np.split(by_query, np.flatnonzero(begins_run(query[by_query]))[1:])
        for group in groups:
            for documents, place in self._blocks(document[group], query[group]):
                pairs = group[place]
                wanted = query[pairs[: len(pairs) // len(documents)]]
                lengths = np.diff(queries.offsets)[wanted]
                tokens = ragged_arange(queries.offsets[wanted], lengths)
                similar = self.similarities(queries.vectors[tokens], documents)
                best = np.maximum.reduceat(similar, starts_of(self.lengths[documents])[:-1], axis=1)
                best *= queries.weights[tokens][:, None]
                scores[pairs] = np.add.reduceat(best, starts_of(lengths)[:-1], axis=0).T.ravel()
        return scores

    def similarities(self, tokens: Float32Array, documents: IntArray) -> Float32Array:
        """Return the cosines of tokens of queries, centred, (n, dim), and all of documents, float32 (n, n_tokens)."""
        places = ragged_arange(self.starts[documents], self.lengths[documents])
        values, factors = decode(np.take(self.codes, places), self.kind, tokens.shape[1])
        found: Float32Array = tokens @ values.T
        found *= factors
        return found

    def _blocks(self, document: IntArray, query: IntArray) -> Iterator[tuple[IntArray, slice]]:
        """Yield documents that the same queries are compared with, and their pairs, by document and then by query."""
        starts = np.flatnonzero(begins_run(document))
        stops = np.append(starts, len(document))[1:]
        most = max(1, _BLOCK_VALUES // max(1, len(self.mean)))
        key, first, n_tokens = b"", 0, 0
        lengths = self.lengths[document[starts]].tolist()
        for start, stop, n_here in zip(starts.tolist(), stops.tolist(), lengths, strict=True):
            mine = query[start:stop].tobytes()
            if n_tokens and (mine != key or n_tokens + n_here > most):
                yield np.unique(document[first:start]), slice(first, start)
                first, n_tokens = start, 0
            key, n_tokens = mine, n_tokens + n_here
        if n_tokens:
            yield np.unique(document[first:]), slice(first, len(document))
