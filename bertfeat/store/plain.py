"""Reader of vectors that a local file holds unencoded: the system copies them straight into the result."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.records import IntArray

_BLOCK_BYTES = 1 << 20
# Rows at most this far apart are read together: that costs less than two system calls.
_GAP_BYTES = 4 << 10

# macOS refuses to read 2 GB or more at once.
_MAX_READ_BYTES = 1 << 30

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PlainColumn:
    """A column of vectors in a file.

    Attributes:
        row_bytes: Bytes of a vector.
        starts: int64 (n_runs + 1,), ascending from 0: the first row of each run, then the number of rows.
        offsets: int64 (n_runs,): the byte of the file where this row begins.
    """

    row_bytes: int
    starts: IntArray
    offsets: IntArray


def read_rows(fd: int, column: PlainColumn, first: int, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of consecutive rows.

    Args:
        fd: The part, open for reading.
        column: Where the column lies in it.
        first: The first row.
        start: The first value to read of each row.
        out: (n_rows, n_values); receives the values. Each of its rows is contiguous.

    Raises:
        OSError: The file cannot be read, or ends early.
        ValueError: The column has no such rows.
    """
    stop = first + len(out)
    _check_rows(column, first, stop)
    run = int(np.searchsorted(column.starts, first, side="right")) - 1
    row = first
    while row < stop:
        end = min(stop, int(column.starts[run + 1]))
        offset = int(column.offsets[run]) + (row - int(column.starts[run])) * column.row_bytes
        _read_run(fd, offset, column.row_bytes, start, out[row - first : end - first])
        row, run = end, run + 1


def _read_run(fd: int, offset: int, row_bytes: int, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of consecutive rows that begin at an offset."""
    if out.shape[1] * out.itemsize == row_bytes and out.flags.c_contiguous:
        read_exactly(fd, offset, out.reshape(-1).view(np.uint8))
        return
    n_block = max(1, _BLOCK_BYTES // row_bytes)
    block = np.empty((min(n_block, len(out)), row_bytes // out.itemsize), out.dtype)
    for row in range(0, len(out), n_block):
        target = out[row : row + n_block]
        rows = block[: len(target)]
        read_exactly(fd, offset + row * row_bytes, rows.reshape(-1).view(np.uint8))
        target[:] = rows[:, start : start + out.shape[1]]


def take_rows(fd: int, column: PlainColumn, rows: IntArray, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of some rows and little of the bytes between them; see `read_rows`.

    Args:
        fd: The part, open for reading.
        column: Where the column lies in it.
        rows: int64 (n_rows,), ascending.
        start: The first value to read of each row.
        out: (n_rows, n_values); receives the values.
    """
    _check_rows(column, int(rows[0]), int(rows[-1]) + 1)
    gap = max(1, _GAP_BYTES // column.row_bytes)
    most = max(1, _BLOCK_BYTES // column.row_bytes)
    # A piece is a group of rows that are close together, at most a block: they are read at once.
    begins = np.flatnonzero(np.diff(rows, prepend=rows[0] - gap - 1) > gap)
    ends = np.append(begins[1:], len(rows))
    is_single = ends - begins == 1
    _take_singles(fd, column, rows, start, begins[is_single], out)
    for begin, end in zip(begins[~is_single].tolist(), ends[~is_single].tolist(), strict=True):
        place = begin
        while place < end:
            stop = place + int(np.searchsorted(rows[place:end], rows[place] + most))
            _take_piece(fd, column, rows[place:stop], start, out[place:stop])
            place = stop


def _take_singles(
    fd: int, column: PlainColumn, rows: IntArray, start: int, places: IntArray, out: npt.NDArray[Any]
) -> None:
    """Read values of the rows at some places of `rows`, each with its own system call."""
    chosen = rows[places]
    homes = np.searchsorted(column.starts, chosen, side="right") - 1
    offsets = column.offsets[homes] + (chosen - column.starts[homes]) * column.row_bytes + start * out.itemsize
    n_bytes = out.shape[1] * out.itemsize
    for place, offset in zip(places.tolist(), offsets.tolist(), strict=True):
        if _read_into(fd, out[place], offset) != n_bytes:
            read_exactly(fd, offset, out[place].view(np.uint8))


def _take_piece(fd: int, column: PlainColumn, rows: IntArray, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of rows that are close together, with the bytes between them."""
    first, n_rows = int(rows[0]), int(rows[-1] - rows[0]) + 1
    if n_rows == len(rows):
        read_rows(fd, column, first, start, out)
    else:
        between = np.empty((n_rows, out.shape[1]), out.dtype)
        read_rows(fd, column, first, start, between)
        out[:] = between[rows - first]


def _check_rows(column: PlainColumn, first: int, stop: int) -> None:
    if first < 0 or stop > column.starts[-1]:
        raise ValueError(f"rows {first} to {stop - 1} of {column.starts[-1]}")


def read_exactly(fd: int, offset: int, out: Bytes) -> None:
    """Read the bytes from an offset of a file into `out`, uint8 (n_bytes,), contiguous.

    Raises:
        OSError: The file cannot be read, or ends early.
    """
    n_done = 0
    while n_done < len(out):
        n_read = _read_into(fd, out[n_done : n_done + _MAX_READ_BYTES], offset + n_done)
        if not n_read:
            raise OSError(f"the file ends at byte {offset + n_done}")
        n_done += n_read


def _read_into(fd: int, out: npt.NDArray[Any], offset: int) -> int:
    """Fill a contiguous array from an offset of a file; return the number of bytes that were read."""
    # macOS has it since version 11.
    preadv = getattr(os, "preadv", None)
    if preadv is not None:
        return int(preadv(fd, [out.data], offset))
    data = os.pread(fd, out.nbytes, offset)
    out.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)
