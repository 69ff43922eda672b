"""Some rows of a level, or all: the row groups that hold them are read, and no others."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from bertfeat.errors import UserError
from bertfeat.records import IntArray
from bertfeat.store.partvectors import KnownRuns, opened_vectors
from bertfeat.store.schema import VectorLayout
from bertfeat.store.vectors import StoredPart, VectorSource, opened_part, read_group

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a part: rows `start` to `stop - 1` of the level."""

    part: StoredPart
    number: int
    start: int
    stop: int


def find_row_groups(parts: Sequence[StoredPart]) -> list[RowGroup]:
    """Return the row groups of a level's parts, in order.

    Raises:
        StoreError: A part is missing or damaged, or has other rows.
    """

    def read(part: StoredPart) -> list[int]:
        with opened_part(part) as file:
            return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]

    groups = []
    start = 0
    for part, counts in zip(parts, _side_by_side(read, parts), strict=True):
        for number, count in enumerate(counts):
            groups.append(RowGroup(part, number, start, start + count))
            start += count
    return groups


def check_rows(rows: npt.ArrayLike, n_rows: int) -> IntArray:
    """Return numbers of rows as an int64 array.

    Raises:
        UserError: One is below 0 or beyond the last row, or they are no whole numbers.
    """
    numbers = np.asarray(rows)
    if numbers.size == 0:
        return np.zeros(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UserError(f"rows of shape {numbers.shape} and type {numbers.dtype}; pass a list of whole numbers")
    outside = numbers[(numbers < 0) | (numbers >= n_rows)]
    if len(outside):
        raise UserError(f"no row {outside[0]}; rows are 0 to {n_rows - 1}")
    return numbers.astype(np.int64)


def take_vectors(
    groups: Sequence[RowGroup], rows: IntArray, source: VectorSource, vectors: VectorLayout, known: KnownRuns
) -> npt.NDArray[Any]:
    """Return the vectors of some rows, (len(rows), dim), in the order of `rows`, which may repeat.

    Parts are read side by side, and of each what is asked for where its vectors can be copied as they stand.
    """
    out = np.empty((len(rows), source.dim), vectors.numpy)
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    is_ready = bool((np.diff(rows) > 0).all())
    stops = np.searchsorted(ascending, [group.stop for group in groups])

    def read(numbers: Sequence[int]) -> None:
        with opened_vectors(groups[numbers[0]].part, source, known) as part:
            for number in numbers:
                chosen = slice(stops[number - 1] if number else 0, stops[number])
                asked = ascending[chosen] - groups[number].start
                if is_ready:
                    part.read(groups[number].number, asked, out[chosen])
                    continue
                once, places = np.unique(asked, return_inverse=True)
                found = np.empty((len(once), source.dim), vectors.numpy)
                part.read(groups[number].number, once, found)
                out[order[chosen]] = found[places]

    needed = np.flatnonzero(np.diff(stops, prepend=0)).tolist()
    by_part = [list(numbers) for _, numbers in itertools.groupby(needed, lambda number: groups[number].part)]
    _side_by_side(read, by_part)
    return out


def take_columns(groups: Sequence[RowGroup], rows: IntArray, names: Sequence[str]) -> pl.DataFrame | None:
    """Return columns of some rows as a frame in the order of `rows`, which may repeat; None of no rows."""
    frames = []
    order = []
    for table, places, offsets in _tables(groups, rows, names):
        frames.append(cast("pl.DataFrame", pl.from_arrow(table.take(pa.array(offsets)))))
        order.append(places)
    if not frames:
        return None
    return pl.concat(frames)[np.argsort(np.concatenate(order), kind="stable")]


def slice_vectors(
    groups: Sequence[RowGroup], start: int, stop: int, source: VectorSource, vectors: VectorLayout, known: KnownRuns
) -> npt.NDArray[Any]:
    """Return the vectors of the rows `start` to `stop - 1`, (n_rows, dim); row groups are read side by side.

    A row whose vector is null holds NaN.
    """
    out = np.empty((stop - start, source.dim), vectors.numpy)

    def read(group: RowGroup) -> None:
        first, last = max(start, group.start), min(stop, group.stop)
        with opened_vectors(group.part, source, known) as part:
            part.read(group.number, range(first - group.start, last - group.start), out[first - start : last - start])

    _side_by_side(read, [group for group in groups if max(start, group.start) < min(stop, group.stop)])
    return out


def _side_by_side(work: Callable[[_T], _R], pieces: Sequence[_T]) -> list[_R]:
    """Do pieces of work in threads, as many as there are processors."""
    n_threads = min(len(pieces), os.cpu_count() or 1)
    if n_threads <= 1:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(work, pieces))


def _tables(
    groups: Sequence[RowGroup], rows: IntArray, names: Sequence[str]
) -> Iterator[tuple[pa.Table, IntArray, IntArray]]:
    """Yield each row group that is needed, which of `rows` it holds, and where in the group these stand."""
    home = np.searchsorted([group.stop for group in groups], rows, side="right")
    needed = [groups[number] for number in np.unique(home).tolist()]
    for part, of_part in itertools.groupby(needed, lambda group: group.part):
        with opened_part(part) as file:
            for group in of_part:
                places = np.flatnonzero((rows >= group.start) & (rows < group.stop))
                table = read_group(file, group.number, names)
                yield table, places, rows[places] - group.start
