"""The vectors of a level in order, some rows at a time, in memory that stays flat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.store.partvectors import KnownRuns, PartVectors, opened_vectors
from bertfeat.store.vectors import StoredPart, VectorSource


@dataclass(frozen=True, slots=True, eq=False)
class FeatureBatch:
    """Consecutive rows of a level.

    `start` is the number of the first row in the level; `vectors` is (n_rows, dim) of the stored type; `columns`
    holds the columns that were asked for along with them.
    """

    start: int
    vectors: npt.NDArray[Any]
    columns: pl.DataFrame

    @property
    def rows(self) -> range:
        """The rows' numbers in the level."""
        return range(self.start, self.start + len(self.vectors))


def read_batches(
    parts: Sequence[StoredPart],
    source: VectorSource,
    known: KnownRuns,
    names: Sequence[str],
    batch_size: int,
) -> Iterator[FeatureBatch]:
    """Yield batches of `batch_size` rows, the last of fewer.

    Args:
        parts: The parts of a level, in order; there is one at least.
        source: Where the vectors come from.
        known: Where the values of parts were found to stand.
        names: Further columns to hand out along with the vectors.
        batch_size: Rows of every batch but the last.

    Raises:
        StoreError: A part is missing or damaged.
    """
    start = n_filled = 0
    dtype = parts[0].vectors.numpy
    vectors = np.empty((batch_size, source.dim), dtype)
    frames: list[pl.DataFrame] = []
    for stored in parts:
        with opened_vectors(stored, source, known, use_threads=True) as part:
            for group, first, stop in _cut(part, batch_size, start + n_filled):
                n_rows = stop - first
                part.read(group, range(first, stop), vectors[n_filled : n_filled + n_rows])
                frames.append(part.columns(group, names).slice(first, n_rows))
                n_filled += n_rows
                if n_filled == batch_size:
                    yield FeatureBatch(start, vectors, pl.concat(frames))
                    start, n_filled, frames = start + batch_size, 0, []
                    vectors = np.empty((batch_size, source.dim), dtype)
    if n_filled:
        yield FeatureBatch(start, vectors[:n_filled], pl.concat(frames))


def _cut(part: PartVectors, batch_size: int, n_before: int) -> Iterator[tuple[int, int, int]]:
    """Yield the rows of a part, row group, first and stop, cut where row groups and batches end."""
    for group in range(part.n_groups):
        first, n_rows = 0, part.n_rows(group)
        while first < n_rows:
            stop = min(n_rows, first + batch_size - n_before % batch_size)
            yield group, first, stop
            n_before += stop - first
            first = stop
