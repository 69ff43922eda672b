"""One side of an audit, train or test: its labelled rows, its documents with a vector each, and rows to show."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from bertfeat.ann.budget import CHUNK_BYTES
from bertfeat.ann.description import BuildSettings
from bertfeat.ann.neighbors import NearestNeighbors
from bertfeat.choices import Level
from bertfeat.levels import LEVELS
from bertfeat.probes.rows import LabelledRows
from bertfeat.records import IntArray
from bertfeat.search.hits import HitRows
from bertfeat.store.reader import Store
from bertfeat.vectors.array import ArrayVectors, FloatArray, Vectors, chunks_of
from bertfeat.vectors.nearest import Metric
from bertfeat.vectors.store import StoreVectors

_CONTEXT_COLUMNS = 60


@dataclass(frozen=True, eq=False)
class Side:
    """One store of an audit: `name` is train or test, `rows` are those with a label and a vector, None without labels.

    `documents` has a row for each document: `doc_id`, `text`, `label` at sentence level, and the columns of the level
    that say how it was read.
    """

    name: str
    store: Store
    level: Level
    feature: str
    rows: LabelledRows | None

    @functools.cached_property
    def documents(self) -> pl.DataFrame:
        """The documents, in order; without texts of their own, those are their words or chunks, with spaces between."""
        if self.level is Level.SENTENCE:
            own = {column.name for column in self.store.schema(self.level).columns}
            frame = self.store.polars(
                self.level, [n for n in ("doc_id", "text", "text_pair", "n_tokens", "truncated") if n in own]
            )
            if "text_pair" in own:
                frame = frame.with_columns(pl.concat_str("text", "text_pair", separator="\n", ignore_nulls=True))
            # polars 2.1 counts texts of `Series.scatter` that are equal as distinct in groups.
            labels = np.full(frame.height, None, object)
            if self.rows is not None:
                labels[self.rows.rows] = list(map(str, self.rows.labels.tolist()))
            return frame.with_columns(pl.Series("label", labels.tolist(), dtype=pl.String))
        surface = LEVELS[self.level].names[-1]
        rows = self.store.polars(self.level, ["doc_id", surface])
        runs = rows.group_by(pl.col("doc_id").rle_id().alias("run"), maintain_order=True)
        found = runs.agg(pl.col("doc_id").first(), text=pl.col(surface).str.join(" "), n_tokens=pl.len()).drop("run")
        if self.level is Level.SPAN and Level.SENTENCE in self.store.levels:
            texts = self.store.polars(Level.SENTENCE, ["doc_id", "text"])
            found = found.drop("text").join(texts, on="doc_id", how="left", maintain_order="left")
        return found

    @functools.cached_property
    def vectors(self) -> tuple[IntArray, Vectors]:
        """The numbers of the documents that have a vector, (n,), and a vector of each: of words or spans their mean."""
        source = StoreVectors(self.store, self.level, self.feature, chunk_bytes=CHUNK_BYTES)
        if self.level is Level.SENTENCE:
            return source.rows, source
        of_rows = self.store.polars(self.level, ["doc_id"])["doc_id"].rle_id().to_numpy()[source.rows]
        sums = np.zeros((self.documents.height, source.shape[1]), np.float32)
        for span, vectors in chunks_of(source):
            np.add.at(sums, of_rows[span.start : span.stop], vectors.astype(np.float32))
        counts = np.bincount(of_rows, minlength=len(sums))
        there = np.flatnonzero(counts)
        return there, ArrayVectors(sums[there] / counts[there, None])

    def shown(self, rows: IntArray) -> pl.DataFrame:
        """Return what names rows of the level, and `text`: of a word or mention, its context."""
        names, hits = list(LEVELS[self.level].names), HitRows(self.store, self.level)
        if self.level is Level.SENTENCE:
            return hits.columns(rows, names).hstack([self.documents["text"].gather(rows)])
        if not hits.has_context:
            return hits.columns(rows, names)
        texts = [context.marked() for context in hits.contexts(rows, _CONTEXT_COLUMNS)]
        return hits.columns(rows, names).with_columns(pl.Series("text", texts, dtype=pl.String))


class Joined:
    """The vectors of several sources, one after the other: `Vectors`."""

    def __init__(self, sources: Sequence[Vectors]) -> None:
        starts = np.cumsum([0, *(source.shape[0] for source in sources)]).tolist()
        self.shape = (starts[-1], sources[0].shape[1])
        self.chunks: Sequence[range] = [
            range(start + rows.start, start + rows.stop)
            for start, source in zip(starts, sources, strict=False)
            for rows in source.chunks
        ]
        self._parts = [(source, chunk) for source in sources for chunk in range(len(source.chunks))]

    def read(self, chunk: int) -> FloatArray:
        """Return the vectors of a chunk, float (rows of the chunk, dim)."""
        source, own = self._parts[chunk]
        return source.read(own)


def join_vectors(sides: Sequence[Side]) -> tuple[IntArray, Joined]:
    """Return the vectors of the documents of all sides, and their numbers among all documents, (n,)."""
    starts = np.cumsum([0, *(side.documents.height for side in sides)])
    numbers = np.concatenate([start + side.vectors[0] for start, side in zip(starts, sides, strict=False)])
    return numbers, Joined([side.vectors[1] for side in sides])


def nearest_of(source: Vectors, seed: int) -> NearestNeighbors:
    """Return the nearest vectors of a source by the cosine of centered vectors."""
    return NearestNeighbors(source, BuildSettings(metric=Metric.COSINE, transform="center", recall=0.99, seed=seed))
