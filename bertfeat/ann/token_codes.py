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

from bertfeat.errors import UserError
from bertfeat.records import Float32Array, IntArray
from bertfeat.vectors.nearest import unit_length

# Values of the documents of one product: 16 MB of float32.
_BLOCK_VALUES = 4 << 20
# The values of each byte of bit codes, float32 (256, 8).
_SIGNS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1


class CodeKind(StrEnum):
    """How a value of a token's vector is stored."""

    BIT = "bit"  # its sign
    INT8 = "int8"  # with one scale per token
    FLOAT16 = "float16"


def parse_codes(name: str) -> CodeKind:
    """Return the kind of a name; raise a UserError if it is unknown."""
    if name not in list(CodeKind):
        raise UserError(f"codes {name!r}: unknown; choose one of {', '.join(CodeKind)}")
    return CodeKind(name)


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


def decode(codes: npt.NDArray[Any], kind: CodeKind, dim: int) -> Float32Array:
    """Return the vectors of codes (n,), float32 (n, dim)."""
    values, scales = _unscaled(codes, kind, dim)
    return values if scales is None else values * scales[:, None]


def _unscaled(codes: npt.NDArray[Any], kind: CodeKind, dim: int) -> tuple[Float32Array, Float32Array | None]:
    """Return the vectors of codes without their scales, float32 (n, dim), and the scales, (n,); None if all are 1."""
    if kind is CodeKind.FLOAT16:
        return codes["values"].astype(np.float32), None
    if kind is CodeKind.INT8:
        return codes["values"].astype(np.float32), codes["scale"]
    # `clip` spares numpy the check of each index, and a copy.
    values = np.take(_SIGNS, codes["values"], axis=0, mode="clip").reshape(len(codes), -1)[:, :dim]
    return values, np.full(len(codes), dim**-0.5, np.float32)


class QueryTokens(NamedTuple):
    """The tokens of queries, in order: their centred vectors, weights that add up to 1 for each query, and borders."""

    vectors: Float32Array  # (n_tokens, dim)
    weights: Float32Array  # (n_tokens,)
    offsets: IntArray  # (n_queries + 1,)

    def some(self, start: int, stop: int) -> QueryTokens:
        """Return the tokens of the queries `start` to `stop - 1`."""
        offsets = self.offsets[start : stop + 1]
        own = slice(offsets[0], offsets[-1])
        return QueryTokens(self.vectors[own], self.weights[own], offsets - offsets[0])


class TokenCodes:
    """The codes of all tokens, (n_tokens,), a mapped file; `offsets`, int64 (n_documents + 1,), are the borders."""

    def __init__(self, codes: npt.NDArray[Any], offsets: IntArray, mean: Float32Array, kind: CodeKind) -> None:
        self.codes = codes
        self.offsets = offsets
        self.mean = mean
        self.kind = kind

    def n_tokens(self, document: int) -> int:
        """Return the number of tokens of a document."""
        return int(self.offsets[document + 1] - self.offsets[document])

    def maxsim(self, queries: QueryTokens, query: IntArray, document: IntArray) -> Float32Array:
        """Return the MaxSim of pairs, float32 (n_pairs,), NaN for a document without tokens.

        Args:
            queries: The tokens of all queries.
            query: int64 (n_pairs,), the query of each pair.
            document: int64 (n_pairs,), its document. No pair is there twice.
        """
        scores = np.full(len(query), np.nan, np.float32)
        has_tokens = self.offsets[document + 1] > self.offsets[document]
        order = np.lexsort((query, document))
        order = order[has_tokens[order]]
        for documents, pairs in self._blocks(document[order], query[order]):
            wanted = query[order[pairs[: len(pairs) // len(documents)]]]
            tokens = np.concatenate([np.arange(queries.offsets[one], queries.offsets[one + 1]) for one in wanted])
            lengths = (queries.offsets[1:] - queries.offsets[:-1])[wanted]
            best = self._best(queries.vectors[tokens], documents) * queries.weights[tokens][:, None]
            starts = np.cumsum(lengths) - lengths
            scores[order[pairs]] = np.add.reduceat(best, starts, axis=0).T.ravel()
        return scores

    def similarities(self, tokens: Float32Array, document: int) -> Float32Array:
        """Return the cosines of the tokens of a query, centred, (n, dim), with those of a document, (n, n_tokens)."""
        values, scales = _unscaled(self._read([document]), self.kind, tokens.shape[1])
        return _product(tokens, values, scales)

    def _best(self, tokens: Float32Array, documents: list[int]) -> Float32Array:
        """Return the highest cosine of each token, centred, (n, dim), in each document, float32 (n, n_documents)."""
        values, scales = _unscaled(self._read(documents), self.kind, tokens.shape[1])
        lengths = self.offsets[1:][documents] - self.offsets[documents]
        found: Float32Array = np.maximum.reduceat(
            _product(tokens, values, scales), np.cumsum(lengths) - lengths, axis=1
        )
        return found

    def _read(self, documents: list[int]) -> npt.NDArray[Any]:
        """Return the codes of documents, one after the other; neighbours are read at once."""
        runs: list[list[int]] = []
        for document in documents:
            start, stop = self.offsets[document : document + 2].tolist()
            if runs and runs[-1][1] == start:
                runs[-1][1] = stop
            else:
                runs.append([start, stop])
        parts = [self.codes[start:stop] for start, stop in runs]
        return np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)

    def _blocks(self, document: IntArray, query: IntArray) -> Iterator[tuple[list[int], IntArray]]:
        """Yield documents that the same queries are compared with, and their pairs, by document and then by query."""
        if not len(document):
            return
        starts = np.flatnonzero(np.append(True, document[1:] != document[:-1]))
        stops = np.append(starts[1:], len(document))
        most = max(1, _BLOCK_VALUES // max(1, len(self.mean)))
        block: list[int] = []
        key, first, n_tokens = b"", 0, 0
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            mine, number = query[start:stop].tobytes(), int(document[start])
            n_here = self.n_tokens(number)
            if block and (mine != key or n_tokens + n_here > most):
                yield block, np.arange(first, start)
                block, first, n_tokens = [], start, 0
            block.append(number)
            key, n_tokens = mine, n_tokens + n_here
        yield block, np.arange(first, len(document))


def _product(tokens: Float32Array, values: Float32Array, scales: Float32Array | None) -> Float32Array:
    found: Float32Array = tokens @ values.T
    if scales is not None:
        found *= scales
    return found
