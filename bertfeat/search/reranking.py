"""Reranking by late interaction: codes of the tokens of an index's documents, and scores of its candidates by them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow.parquet as pq
from numpy.lib.stride_tricks import sliding_window_view

from bertfeat.ann.description import CODES, FREQUENCIES, TOKENS
from bertfeat.ann.exact import sample_positions
from bertfeat.ann.folder import publish_aside, read_arrays, read_json, write_arrays, write_json
from bertfeat.ann.token_codes import CodeKind, QueryTokens, TokenCodes, centred, code_type, encode
from bertfeat.choices import Level, one_of
from bertfeat.durable import files
from bertfeat.durable.steps import step
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS, WORDS
from bertfeat.progress import Progress
from bertfeat.ragged import overlapping, ragged_arange, run_of, starts_of
from bertfeat.records import Float32Array, IntArray
from bertfeat.search.origin import Origin, TokenOrigin
from bertfeat.search.query_vectors import EncodedTokens
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store
from bertfeat.vectors.store import StoreVectors, searchable

_BOUNDS = ("char_start", "char_end")
_PLACE = ("segment", *_BOUNDS)

_DONE = "tokens.json"
_Texts = TypeVar("_Texts", pl.Expr, pl.Series)
# Enough for a mean: its error is below 1 % of the deviation of a value.
_N_SAMPLED = 1 << 16


class Rerank(StrEnum):
    """How the candidates of a dense index are ordered."""

    NONE = "none"  # by the score of the index
    MAXSIM = "maxsim"  # by MaxSim, all tokens of a query with the same weight
    IDF = "idf"  # by MaxSim, each token weighted by its inverse document frequency
    MIXED = "mixed"  # by the mean of the cosine of the index and `idf`


# The smallest codes that lose less than 0.005 of nDCG@10: docs/rerank.md.
DEFAULT_CODES = CodeKind.BIT


def find_tokens_feature(store: Store, level: Level, rerank: str | None, codes: str | None) -> TokenOrigin | None:
    """Return the feature that `LEVEL:FEATURE` names, for the documents of a store; `level` is that of the index."""
    if rerank is None:
        if codes is not None:
            raise UserError(f"`codes` {codes!r} is for `rerank`; pass both, or leave it out")
        return None
    kind = one_of(CodeKind, "codes", DEFAULT_CODES if codes is None else codes)
    if level in WORDS:
        raise UserError(f"`rerank` {rerank!r} is for an index of sentences or spans, and this is of {level} rows")
    name, _, feature = rerank.partition(":")
    if name not in WORDS:
        raise UserError(f"`rerank` {rerank!r}: level {name!r} is not {' or '.join(WORDS)}; write token:layer_06")
    where = store.choose_level(name)
    return TokenOrigin(FeatureSpec.of(store, where, store.choose_feature(where, feature or None)), str(kind))


class _Documents(NamedTuple):
    """Where the tokens of an index's documents are in their level, and how many documents have each."""

    rows: IntArray  # (n_tokens,), ascending
    places: IntArray  # (n_documents, 2): the first of `rows` of each document, and the end
    starts: IntArray  # (n_documents,): its first row
    lengths: IntArray  # (n_documents,): the number of its rows, with those without a vector
    frequencies: pl.DataFrame  # `token` and `n_documents`


def _find_tokens(store: Store, spec: FeatureSpec, sentences: IntArray) -> _Documents:
    """Find the tokens of documents, whose rows are `sentences`, int64 (n_documents,), one shard at a time."""
    surface = LEVELS[spec.level].surface
    keep = searchable(store, spec.level, spec.feature)
    is_indexed = np.zeros(store.n_rows(Level.SENTENCE), np.bool_)
    is_indexed[sentences] = True
    lengths, counts = np.zeros((2, len(is_indexed)), np.int64)
    total, n_rows, n_documents = pl.DataFrame(), 0, 0
    for shard in (store.shard(entry.shard) for entry in store.manifest.shards):
        ids = shard.polars(Level.SENTENCE, ["doc_id"]).with_row_index("document", n_documents)
        frame = shard.polars(spec.level, ["doc_id", surface]).join(ids, on="doc_id", how="left", maintain_order="left")
        document = frame["document"].to_numpy().astype(np.int64)
        kept = keep[n_rows : n_rows + len(frame)]
        kept &= is_indexed[document]
        here = slice(n_documents, n_documents + len(ids))
        lengths[here] = np.bincount(document - n_documents, minlength=len(ids))
        counts[here] = np.bincount(document[kept] - n_documents, minlength=len(ids))
        tokens = frame.filter(kept).select("document", token=_folded(pl.col(surface), spec.level)).unique()
        total = pl.concat([total, tokens.group_by("token").agg(n_documents=pl.len())])
        total = total.group_by("token").agg(pl.col("n_documents").sum())
        n_rows, n_documents = n_rows + len(frame), n_documents + len(ids)
    starts, places = starts_of(lengths)[:-1], sliding_window_view(starts_of(counts[sentences]), 2)
    return _Documents(np.flatnonzero(keep), places, starts[sentences], lengths[sentences], total.sort("token"))


def _find_tokens_of_spans(store: Store, spec: FeatureSpec, spans: IntArray) -> _Documents:
    """Find the tokens that overlap spans, whose rows are `spans`, int64 (n_spans,), one shard at a time."""
    surface = LEVELS[spec.level].surface
    keep = searchable(store, spec.level, spec.feature)
    places, total = np.zeros((store.n_rows(Level.SPAN), 2), np.int64), pl.DataFrame()
    is_indexed = np.zeros(len(places), np.bool_)
    is_indexed[spans] = True
    n_rows, n_kept, n_spans = 0, 0, 0
    for shard in (store.shard(entry.shard) for entry in store.manifest.shards):
        tokens = shard.polars(spec.level, ["doc_id", *_BOUNDS, surface])
        kept = keep[n_rows : n_rows + len(tokens)]
        n_rows, tokens = n_rows + len(tokens), tokens.filter(kept)
        own = shard.polars(Level.SPAN, ["doc_id", *_BOUNDS])
        numbers = own.select(pl.col("doc_id").unique(maintain_order=True)).with_row_index("document")
        tokens, own = (each.join(numbers, on="doc_id", how="left", maintain_order="left") for each in (tokens, own))
        here = slice(n_spans, n_spans + len(own))
        bounds = overlapping(*_keys_of(own), *_keys_of(tokens))
        places[here] = np.stack(bounds, axis=1) + n_kept
        n_here = np.where(is_indexed[here], bounds[1] - bounds[0], 0)
        token = _folded(tokens[surface].gather(ragged_arange(bounds[0], n_here)), spec.level)
        pairs = pl.DataFrame({"span": run_of(n_here), "token": token}).unique()
        total = pl.concat([total, pairs.group_by("token").agg(n_documents=pl.len())])
        total = total.group_by("token").agg(pl.col("n_documents").sum())
        n_kept, n_spans = n_kept + len(tokens), n_spans + len(own)
    rows, places = np.append(np.flatnonzero(keep), 0), places[spans]
    starts = rows[places[:, 0]]
    lengths = np.where(places[:, 1] > places[:, 0], rows[places[:, 1] - 1] + 1 - starts, 0)
    return _Documents(rows[:-1], places, starts, lengths, total.sort("token"))


def _keys_of(frame: pl.DataFrame) -> tuple[IntArray, IntArray]:
    """Return the start and the end of each row as keys that ascend over documents, int64 (n_rows,)."""
    # A document without spans has no number: no span is of it.
    document = frame["document"].cast(pl.Int64).fill_null(strategy="forward").fill_null(-1).to_numpy()
    start, end = ((document << 32) + frame[name].fill_null(0).to_numpy() for name in _BOUNDS)
    return start, end


def _folded(token: _Texts, level: Level) -> _Texts:
    """Return words in lower case; the tokens of a model are as its tokenizer has them."""
    return token.str.to_lowercase() if level is Level.WORD else token


def write_tokens(
    folder: Path, store: Store, origin: Origin, sentences: IntArray, progress: Progress, old: Path | None = None
) -> Origin:
    """Write the codes of the tokens of documents into a folder, or resume; return `origin` with the number of tokens.

    `sentences`, int64 (n_documents,), are the rows of the documents. `old` is an index of the first of them: its codes
    and its mean stay.
    """
    if (tokens := origin.rerank) is None:
        return origin
    spec = tokens.spec
    if old is not None:
        spec.find_in(store, mine=f"index {old}")
    progress.stage("finding tokens")
    found = (_find_tokens if origin.spec.level is Level.SENTENCE else _find_tokens_of_spans)(store, spec, sentences)
    origin = dataclasses.replace(origin, rerank=dataclasses.replace(tokens, n_tokens=len(found.rows)))
    if (folder / FREQUENCIES).exists():
        return origin
    saved = read_arrays((old or folder) / TOKENS)
    if saved is None:
        sample = found.rows[sample_positions(len(found.rows), _N_SAMPLED, 0)]
        vectors = store.take(spec.level, spec.feature, sample)
        mean = vectors.mean(axis=0, dtype=np.float64) if len(sample) else np.zeros(spec.dim)
        saved = {"mean": mean.astype(np.float32)}
    elif not np.array_equal(before := _places_in(saved), found.places[: len(before)]):
        raise UserError(f"{store.path}: its first documents have other {spec.level} rows than those of {old}")
    places = {name: getattr(found, name) for name in ("places", "starts", "lengths")}
    write_arrays(folder / TOKENS, {"mean": saved["mean"], **places})
    source = StoreVectors(store, spec.level, spec.feature, rows=found.rows, progress=progress)
    _write_codes(folder, source, saved["mean"], CodeKind(tokens.codes), old)
    with publish_aside(folder / FREQUENCIES) as sink:
        pq.write_table(found.frequencies.to_arrow(compat_level=pl.CompatLevel.oldest()), sink)
    (folder / _DONE).unlink(missing_ok=True)
    return origin


def _places_in(arrays: Mapping[str, npt.NDArray[Any]]) -> IntArray:
    """Return where the codes of each document are, which older indexes wrote as borders."""
    return arrays["places"] if "places" in arrays else sliding_window_view(arrays["offsets"], 2)


def _write_codes(folder: Path, source: StoreVectors, mean: Float32Array, kind: CodeKind, old: Path | None) -> None:
    """Write the codes of all vectors of a source, from the place on where an earlier run was stopped."""
    path, done = folder / CODES, folder / _DONE
    n_done = read_json(done, int) or 0
    itemsize = code_type(kind, source.shape[1]).itemsize
    with files.write_errors(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with contextlib.closing(files.Sink(fd)) as sink:
            os.ftruncate(fd, n_done * itemsize)
            os.lseek(fd, 0, os.SEEK_END)
            if old is not None:
                with (old / CODES).open("rb") as codes:
                    shutil.copyfileobj(codes, sink, 1 << 24)
                n_done = sink.n_bytes // itemsize
            for chunk, rows in enumerate(source.chunks):
                if rows.stop > n_done:
                    vectors = source.read(chunk)[max(0, n_done - rows.start) :]
                    sink.write(encode(centred(vectors, mean), kind).data)
                    sink.sync()
                    write_json(done, rows.stop)
                    step("tokens.checkpoint")
            sink.sync()


class Tokens:
    """The tokens of the documents of an index, open for searching; threads may share it."""

    def __init__(self, folder: Path, origin: TokenOrigin) -> None:
        self.spec = origin.spec
        arrays = cast("dict[str, npt.NDArray[Any]]", read_arrays(folder / TOKENS))
        self._starts, self._lengths = arrays["starts"], arrays["lengths"]
        kind = CodeKind(origin.codes)
        dtype = code_type(kind, self.spec.dim)
        # An empty file cannot be mapped.
        codes = np.memmap(folder / CODES, dtype, mode="r") if origin.n_tokens else np.empty(0, dtype)
        self.codes = TokenCodes(codes, _places_in(arrays), arrays["mean"], kind)
        self._frequencies = folder / FREQUENCIES

    @functools.cached_property
    def _n_documents_with(self) -> Mapping[str, int]:
        return dict(pl.read_parquet(self._frequencies).iter_rows())

    def reranker(self, queries: Sequence[EncodedTokens], how: Rerank) -> Reranker:
        """Return a reranker for queries: their tokens, centred and weighted."""
        lengths = np.array([len(query.surfaces) for query in queries], np.int64)
        if not lengths.all():
            raise UserError(f"query {int(np.argmin(lengths))}: has no token to rerank by; pass `rerank='none'`")
        surfaces = pl.DataFrame({"token": [name for query in queries for name in query.surfaces]}, {"token": pl.String})
        weights = np.ones(len(surfaces), np.float32)
        if how is not Rerank.MAXSIM:
            folded = surfaces.select(_folded(pl.col("token"), self.spec.level))["token"]
            found = np.array([self._n_documents_with.get(name, 0) for name in folded])
            # That of BM25 (Robertson and Zaragoza 2009), which is positive for a token of every document.
            weights = np.log1p((len(self._starts) - found + 0.5) / (found + 0.5)).astype(np.float32)
        offsets = starts_of(lengths)
        if len(queries):
            weights /= np.repeat(np.add.reduceat(weights, offsets[:-1]), lengths)
        vectors = [query.vectors for query in queries] or [np.zeros((0, self.spec.dim))]
        asked = QueryTokens(centred(np.concatenate(vectors), self.codes.mean), weights, offsets)
        return Reranker(self, queries, asked, how)

    def words(self, store: Store, document: int) -> pl.DataFrame:
        """Return the word of each token of a document that has a code: `word` and its place."""
        level, start, n_rows = self.spec.level, int(self._starts[document]), int(self._lengths[document])
        numbers = np.arange(start, start + n_rows)
        there = {column.name for column in store.schema(level).columns}
        names = [name for name in ("word_index", *_PLACE, LEVELS[level].surface, "is_special") if name in there]
        missing = [pl.lit(None, pl.Int32).alias(name) for name in ("word_index", *_PLACE) if name not in names]
        frame = store.rows(level, numbers, names).rename({LEVELS[level].surface: "word"}).with_columns(missing)
        kept = ~frame["is_special"].to_numpy() if "is_special" in names else np.ones(n_rows, np.bool_)
        if np.count_nonzero(kept) != self.codes.lengths[document]:
            kept &= np.isfinite(store.take(level, self.spec.feature, numbers)).all(axis=1)
        # A token outside of all words is a word of its own.
        word = [pl.col("segment"), pl.col("word_index").fill_null(-1 - pl.int_range(pl.len()))]
        ends = pl.col("char_start").min().over(word), pl.col("char_end").max().over(word)
        return frame.with_columns(ends).filter(kept).select("word", *_PLACE)


class Reranker(NamedTuple):
    """Late interaction of the tokens of some queries with those of the documents of an index."""

    tokens: Tokens
    queries: Sequence[EncodedTokens]
    asked: QueryTokens
    how: Rerank

    def order(self, first: int, dense: Float32Array, positions: IntArray) -> tuple[npt.NDArray[Any], ...]:
        """Return scores, dense scores and positions of n queries from number `first` on, (n, n_candidates), best first.

        A document without tokens has the score NaN and comes last.
        """
        query, place = np.nonzero(positions >= 0)
        scores: Float32Array = np.full(positions.shape, np.nan, np.float32)
        scores[query, place] = self.tokens.codes.maxsim(self.asked, first + query, positions[query, place])
        if self.how is Rerank.MIXED:
            scores += dense
            scores /= 2
        # Missing hits come after documents without tokens; among equal scores the lower position wins.
        order = np.lexsort((positions, -scores, positions < 0), axis=-1)
        rows = np.arange(len(order))[:, None]
        return scores[rows, order], dense[rows, order], positions[rows, order]

    def matches(
        self, store: Store, query: int, document: int, texts: Sequence[str], start: int = 0
    ) -> list[dict[str, Any]]:
        """Return what each word of a query met in a document, which has one text or two; see `Index.search`.

        `start` is the first character of the text in the document, if it is a span.
        """
        own, tokens = slice(*self.asked.offsets[query : query + 2].tolist()), self.queries[query]
        similar = self.tokens.codes.similarities(self.asked.vectors[own], np.array([document]))
        if not similar.shape[1]:
            return []
        similarity = similar.max(axis=1)
        named = {"query_word": tokens.words, "number": tokens.numbers, "similarity": similarity}
        pairs = pl.DataFrame({**named, "score": similarity * self.asked.weights[own]})
        pairs = pairs.hstack(self.tokens.words(store, document)[similar.argmax(axis=1).tolist()])
        # A word of several tokens met the word that its best token met.
        best = pl.all().exclude("score").sort_by("score", descending=True).first()
        words = pairs.group_by("number", maintain_order=True).agg(best, pl.col("score").sum()).drop("number")
        for word in (found := words.to_dicts()):
            second = word["segment"] or 0
            if word["char_start"] is not None:
                # A token may begin before a span.
                word["char_start"], word["char_end"] = (max(0, word[name] - start) for name in _BOUNDS)
                word["word"] = texts[second][word["char_start"] : word["char_end"]]
            if len(texts) < 2:
                del word["segment"]
        return found
