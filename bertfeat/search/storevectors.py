"""Vectors of a store as the source of an index: part by part, without rows that have no vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.ann.vectorparts import VectorBatch
from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.progress import Progress
from bertfeat.records import BoolArray, IntArray
from bertfeat.store.reader import Store

# A batch takes about as much as the row group that is in memory with it.
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Vectors with the rows of the level that they come from.

    `positions` are their consecutive places in the index; `rows` int64 (n,) are the numbers of the rows; `columns` are
    columns of the rows; `vectors` is (n, dim) of the stored type.
    """

    positions: range
    rows: IntArray
    columns: pl.DataFrame
    vectors: npt.NDArray[Any]


class _Part(NamedTuple):
    """A Parquet part of the level: the number of its shard, its rows, and the places of its vectors in the index."""

    shard: int
    rows: range
    positions: range


class StoreParts:
    """The vectors of a store's level and feature, numbered without gaps; one part for each Parquet part that has some.

    Rows without a vector are left out, and at token level special tokens too, which are not part of the text.

    Args:
        store: The store.
        level: The level.
        feature: The feature, stored or made from stored ones.
        progress: Receiver of reports of how many vectors have been read.

    Attributes:
        included: bool (rows of the level,), which rows have a vector here.

    Raises:
        UserError: There is no such level or feature.
        StoreError: A part is missing or damaged.
    """

    def __init__(self, store: Store, level: Level, feature: str, progress: Progress | None = None) -> None:
        self.progress = progress or Progress()
        self.store = store
        self.level = level
        self.feature = feature
        self.dim = store.feature(level, feature).dim
        self.included = _included(store, level, feature)
        self._parts = list(_parts(store, level, self.included))
        self.parts: Sequence[range] = [part.positions for part in self._parts]
        self.n_vectors = self.parts[-1].stop if self.parts else 0
        self._batch_rows = max(256, _BATCH_BYTES // (4 * self.dim))

    def batches(self, part: int) -> Iterator[VectorBatch]:
        """Yield the vectors of a part in order."""
        for batch in self.row_batches(part):
            self.progress.stage("reading vectors", batch.positions.stop, self.n_vectors)
            yield VectorBatch(batch.positions, batch.vectors)

    def row_batches(self, part: int, columns: Sequence[str] = ()) -> Iterator[RowBatch]:
        """Yield the vectors of a part in order, with their rows and columns."""
        found = self._parts[part]
        store = self.store.shard(found.shard)
        position = found.positions.start
        for batch in store.batches(self.level, self.feature, batch_size=self._batch_rows, columns=columns):
            first_row = found.rows.start + batch.start
            chosen = np.flatnonzero(self.included[first_row : first_row + len(batch.vectors)]).astype(np.int64)
            is_whole = len(chosen) == len(batch.vectors)
            yield RowBatch(
                range(position, position + len(chosen)),
                chosen + first_row,
                batch.columns if is_whole else batch.columns[chosen],
                batch.vectors if is_whole else batch.vectors[chosen],
            )
            position += len(chosen)


def _included(store: Store, level: Level, feature: str) -> BoolArray:
    """Return which rows of a level may be found, bool (n_rows,)."""
    included = store.valid(level, feature)
    if level is Level.TOKEN:
        included &= ~store.polars(level, ["is_special"])["is_special"].to_numpy()
    return included


def _parts(store: Store, level: Level, included: BoolArray) -> Iterator[_Part]:
    row = position = 0
    for entry, part in zip(store.manifest.shards, store.parts(level), strict=True):
        rows = range(row, row + part.n_rows)
        n_vectors = int(np.count_nonzero(included[rows.start : rows.stop]))
        if n_vectors:
            yield _Part(entry.shard, rows, range(position, position + n_vectors))
        row, position = rows.stop, position + n_vectors


def choose_feature(store: Store, level: Level, feature: str | int | None) -> str:
    """Return the feature to index: the given one, the only one, or `concat_last4`; else raise a UserError."""
    if feature is not None:
        return store.feature(level, feature).name
    names = [found.name for found in store.features(level)]
    if len(names) == 1:
        return names[0]
    try:
        return store.feature(level, "concat_last4").name
    except UserError:
        raise UserError(
            f"{store.path}: has the features {', '.join(names)} at level {level}; pass `feature` with one of them"
        ) from None
