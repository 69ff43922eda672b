"""Some rows of a level: the row groups that hold them are read, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from bertfeat.errors import UserError
from bertfeat.records import IntArray
from bertfeat.storage import AnyPath
from bertfeat.store.schema import VectorLayout
from bertfeat.store.vectors import VectorSource, fill, opened_part


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a part: rows `start` to `stop - 1` of the level."""

    path: AnyPath
    number: int
    start: int
    stop: int


def find_row_groups(paths: Sequence[AnyPath]) -> list[RowGroup]:
    """Return the row groups of a level's parts, in order.

    Raises:
        StoreError: A part is missing or damaged.
    """
    groups = []
    start = 0
    for path in paths:
        with opened_part(path) as file:
            for number in range(file.num_row_groups):
                stop = start + file.metadata.row_group(number).num_rows
                groups.append(RowGroup(path, number, start, stop))
                start = stop
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
    groups: Sequence[RowGroup], rows: IntArray, source: VectorSource, vectors: VectorLayout
) -> npt.NDArray[Any]:
    """Return the vectors of some rows, (len(rows), dim), in the order of `rows`, which may repeat."""
    out = np.empty((len(rows), source.dim), vectors.numpy)
    for table, places, offsets in _tables(groups, rows, source.columns):
        chosen = table.take(pa.array(offsets))
        found = np.empty((len(offsets), source.dim), vectors.numpy)
        fill(found, chosen, source, vectors)
        out[places] = found
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
    groups: Sequence[RowGroup], start: int, stop: int, source: VectorSource, vectors: VectorLayout
) -> npt.NDArray[Any]:
    """Return the vectors of the rows `start` to `stop - 1`, (n_rows, dim)."""
    out = np.empty((stop - start, source.dim), vectors.numpy)
    for group in groups:
        first, last = max(start, group.start), min(stop, group.stop)
        if first < last:
            table = _read(group, source.columns).slice(first - group.start, last - first)
            fill(out[first - start : last - start], table, source, vectors)
    return out


def _tables(
    groups: Sequence[RowGroup], rows: IntArray, names: Sequence[str]
) -> Iterator[tuple[pa.Table, IntArray, IntArray]]:
    """Yield each row group that is needed, which of `rows` it holds, and where in the group these stand."""
    home = np.searchsorted([group.stop for group in groups], rows, side="right")
    for number in np.unique(home).tolist():
        group = groups[number]
        places = np.flatnonzero(home == number)
        yield _read(group, names), places, rows[places] - group.start


def _read(group: RowGroup, names: Sequence[str]) -> pa.Table:
    with opened_part(group.path) as file:
        return file.read_row_group(group.number, columns=list(names))
