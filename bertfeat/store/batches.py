"""The vectors of a level in order, some rows at a time, in memory that stays flat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.store.partvectors import CheckedParts, opened_vectors
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
    checked: CheckedParts,
    names: Sequence[str],
    batch_size: int,
) -> Iterator[FeatureBatch]:
    """Yield batches of `batch_size` rows, the last of fewer.

    Args:
        parts: The parts of a level, in order; there is one at least.
        source: Where the vectors come from.
        checked: The parts whose digest was found right.
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
        with opened_vectors(stored, source, checked, use_threads=True) as part:
            first = 0
            while first < stored.info.n_rows:
                rows = range(first, min(stored.info.n_rows, first + batch_size - n_filled))
                part.read(rows, vectors[n_filled : n_filled + len(rows)])
                frames.append(part.columns(rows, names))
                first, n_filled = rows.stop, n_filled + len(rows)
                if n_filled == batch_size:
                    yield FeatureBatch(start, vectors, pl.concat(frames))
                    start, n_filled, frames = start + batch_size, 0, []
                    vectors = np.empty((batch_size, source.dim), dtype)
    if n_filled:
        yield FeatureBatch(start, vectors[:n_filled], pl.concat(frames))
