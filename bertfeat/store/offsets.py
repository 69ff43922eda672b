"""Reader of vectors at their offsets in a local file, which holds them unencoded.

The values are read, not mapped: a mapped file that is cut while it is read ends the process with SIGBUS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.records import IntArray

# Rows at most this far apart are read together: that costs less than another system call.
_GAP_BYTES = 4 << 10
# The most that is read together; about as much is kept besides the result.
_BLOCK_BYTES = 256 << 10

# Row numbers, ascending without repeats.
Rows = range | IntArray


def split_rows(rows: Any, starts: IntArray) -> Iterator[tuple[int, slice, Any]]:
    """Yield each section of a table with some of the rows: its number, their places in `rows`, and their numbers in it.

    `starts` is int64 (n_sections + 1,): the first row of each section, then the number of rows.
    """
    if isinstance(rows, range):
        # Without arrays: a block of rows is in one or two sections, and is soon read.
        first, stop = starts.searchsorted(rows.start, side="right") - 1, starts.searchsorted(rows.stop)
        for number, (start, end) in enumerate(pairwise(starts[first : stop + 1].tolist()), int(first)):
            found = range(max(start, rows.start), min(end, rows.stop))
            if found:
                places = slice(found.start - rows.start, found.stop - rows.start)
                yield number, places, range(found.start - start, found.stop - start)
        return
    bounds = rows.searchsorted(starts)
    sections = (bounds[1:] > bounds[:-1]).nonzero()[0]
    columns = sections, bounds[sections], bounds[sections + 1], starts[sections]
    for number, begin, end, start in zip(*(column.tolist() for column in columns), strict=True):
        yield number, slice(begin, end), rows[begin:end] - start


@dataclass(frozen=True, slots=True)
class VectorOffsets:
    """The places of a column of vectors in a file.

    Attributes:
        row_bytes: Bytes of a vector.
        starts: int64 (n_runs + 1,), ascending from 0: the first row of each run, then the number of rows.
        offsets: int64 (n_runs,): the byte of the file where this row begins.
    """

    row_bytes: int
    starts: IntArray
    offsets: IntArray


def read_values(file: FileIO, column: VectorOffsets, rows: Rows, start: int, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read the values from `start` on of some rows, one or more, and little of the bytes between them.

    `out` (n_rows, n_values) receives the values, and is returned. Each of its rows is contiguous.
    """
    first, last = int(rows[0]), int(rows[-1])
    if first < 0 or last >= column.starts[-1]:
        raise ValueError(f"rows {first} to {last} of {column.starts[-1]}")
    if last - first >= len(rows):
        _read_apart(file, column, rows, start, out)
        return out
    for run, places, found in split_rows(range(first, last + 1), column.starts):
        _read_run(file, int(column.offsets[run]) + found.start * column.row_bytes, column.row_bytes, start, out[places])
    return out


def _read_run(file: FileIO, offset: int, row_bytes: int, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of consecutive rows that begin at an offset."""
    if out.shape[1] * out.itemsize == row_bytes and out.flags.c_contiguous:
        _fill(file, offset, _bytes_of(out))
        return
    n_rows = max(1, _BLOCK_BYTES // row_bytes)
    block = np.empty((min(n_rows, len(out)), row_bytes // out.itemsize), out.dtype)
    for row in range(0, len(out), n_rows):
        found = block[: len(out) - row]
        _fill(file, offset + row * row_bytes, _bytes_of(found))
        out[row : row + n_rows] = found[:, start : start + out.shape[1]]


def _read_apart(file: FileIO, column: VectorOffsets, rows: Any, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of rows that are not consecutive, in spans of rows that are close together."""
    n_bytes = out.shape[1] * out.itemsize
    runs = np.searchsorted(column.starts, rows, side="right") - 1
    offsets = column.offsets[runs] + (rows - column.starts[runs]) * column.row_bytes + start * out.itemsize
    steps = np.diff(offsets)
    is_apart = (steps < 0) | (steps > n_bytes + _GAP_BYTES) | (np.diff(offsets // _BLOCK_BYTES) != 0)
    bounds = np.concatenate([[0], np.flatnonzero(is_apart) + 1, [len(rows)]])
    spans = offsets[bounds[:-1]]
    sizes = offsets[bounds[1:] - 1] + n_bytes - spans
    # The place of each span, and of each row, in all spans laid end to end. A block is read before it is copied.
    places = np.cumsum(sizes) - sizes
    row_places = offsets + np.repeat(places - spans, np.diff(bounds))
    blocks = [0, *(np.flatnonzero(np.diff(places // _BLOCK_BYTES)) + 1).tolist(), len(spans)]
    block = np.empty(min(int(sizes.sum()), _BLOCK_BYTES + int(sizes.max())), np.uint8)
    # The bytes of a row from every place where one could begin.
    windows: npt.NDArray[Any] = np.ndarray((len(block) - n_bytes + 1,), f"V{n_bytes}", block, strides=(1,))
    view, seek, readinto = block.data, file.seek, file.readinto
    for first, stop in pairwise(blocks):
        place = 0
        for offset, size in zip(spans[first:stop].tolist(), sizes[first:stop].tolist(), strict=True):
            seek(offset)
            if readinto(view[place : place + size]) != size:
                _fill(file, offset, view[place : place + size])
            place += size
        chosen = slice(bounds[first], bounds[stop])
        out[chosen] = windows[row_places[chosen] - places[first]].view(out.dtype).reshape(-1, out.shape[1])


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.data.cast("B")


def _fill(file: FileIO, offset: int, rest: memoryview) -> None:
    """Fill bytes from an offset of a file on; a system may return fewer at once than it is asked for."""
    file.seek(offset)
    while rest:
        n_bytes = file.readinto(rest)
        if not n_bytes:
            raise OSError(f"the file ends at byte {file.seek(0, os.SEEK_END)}")
        rest = rest[n_bytes:]
