"""Vectors of a column that stands in a local file as it is: copied by the system straight to where they belong."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.records import IntArray
from bertfeat.store.pages import Runs

_BLOCK_BYTES = 1 << 20
# Rows that are no farther apart are read in one go: that costs less than to ask the system twice.
_GAP_BYTES = 4 << 10

# macOS refuses to read 2 GB or more at once.
_MAX_READ_BYTES = 1 << 30

Bytes = npt.NDArray[np.uint8]


def read_rows(fd: int, runs: Runs, first: int, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of consecutive rows.

    Args:
        fd: The part, open for reading.
        runs: Where the column lies in it.
        first: The first row.
        start: The first value of each row that is wanted.
        out: (n_rows, n_values); takes the values. Its rows lie in one piece each.

    Raises:
        OSError: The file cannot be read, or ends early.
    """
    row_bytes = out.shape[1] * out.itemsize
    if row_bytes == runs.row_bytes and out.flags.c_contiguous:
        _read(fd, runs, first * runs.row_bytes, out.reshape(-1).view(np.uint8))
        return
    n_block = max(1, _BLOCK_BYTES // runs.row_bytes)
    block = np.empty((min(n_block, len(out)), runs.row_bytes // out.itemsize), out.dtype)
    for row in range(0, len(out), n_block):
        target = out[row : row + n_block]
        rows = block[: len(target)]
        _read(fd, runs, (first + row) * runs.row_bytes, rows.reshape(-1).view(np.uint8))
        target[:] = rows[:, start : start + out.shape[1]]


def take_rows(fd: int, runs: Runs, rows: IntArray, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of some rows, and little of what stands between them.

    Args:
        fd: The part, open for reading.
        runs: Where the column lies in it.
        rows: int64 (n_rows,), ascending.
        start: The first value of each row that is wanted.
        out: (n_rows, n_values); takes the values. Its rows lie in one piece each.

    Raises:
        OSError: The file cannot be read, or ends early.
    """
    gap = max(1, _GAP_BYTES // runs.row_bytes)
    most = max(1, _BLOCK_BYTES // runs.row_bytes)
    # A piece is as many rows as are read at once: those that stand close together, but no more than a block holds.
    begins = np.flatnonzero(np.diff(rows, prepend=rows[0] - gap - 1) > gap)
    ends = np.append(begins[1:], len(rows))
    is_single = ends - begins == 1
    _take_singles(fd, runs, rows, start, begins[is_single], out)
    for begin, end in zip(begins[~is_single].tolist(), ends[~is_single].tolist(), strict=True):
        place = begin
        while place < end:
            stop = place + int(np.searchsorted(rows[place:end], rows[place] + most))
            _take_piece(fd, runs, rows[place:stop], start, out[place:stop])
            place = stop


def _take_singles(fd: int, runs: Runs, rows: IntArray, start: int, places: IntArray, out: npt.NDArray[Any]) -> None:
    """Read values of the rows at some places of `rows`, each by itself and nothing beside them."""
    n_bytes = out.shape[1] * out.itemsize
    firsts = rows[places] * runs.row_bytes + start * out.itemsize
    homes = np.searchsorted(runs.starts, firsts, side="right") - 1
    stops = np.append(runs.starts[1:], runs.n_bytes)[homes]
    offsets = runs.offsets[homes] + firsts - runs.starts[homes]
    is_whole = firsts + n_bytes <= stops
    for place, first, offset, whole in zip(
        places.tolist(), firsts.tolist(), offsets.tolist(), is_whole.tolist(), strict=True
    ):
        # A row may begin on one page and end on the next.
        if not whole or _read_into(fd, out[place], offset) != n_bytes:
            _read(fd, runs, first, out[place].view(np.uint8))


def _take_piece(fd: int, runs: Runs, rows: IntArray, start: int, out: npt.NDArray[Any]) -> None:
    """Read values of rows that stand close together, with what is between them."""
    first, n_rows = int(rows[0]), int(rows[-1] - rows[0]) + 1
    if n_rows == len(rows):
        read_rows(fd, runs, first, start, out)
    else:
        between = np.empty((n_rows, out.shape[1]), out.dtype)
        read_rows(fd, runs, first, start, between)
        out[:] = between[rows - first]


def _read(fd: int, runs: Runs, start: int, out: Bytes) -> None:
    """Read the bytes of a column from number `start` on."""
    if start < 0 or start + len(out) > runs.n_bytes:
        raise ValueError(f"bytes {start} to {start + len(out)} of {runs.n_bytes}")
    run = int(np.searchsorted(runs.starts, start, side="right")) - 1
    n_done = 0
    while n_done < len(out):
        stop = int(runs.starts[run + 1]) if run + 1 < len(runs.starts) else runs.n_bytes
        n_wanted = min(len(out) - n_done, stop - start - n_done)
        offset = int(runs.offsets[run]) + start + n_done - int(runs.starts[run])
        _read_exactly(fd, offset, out[n_done : n_done + n_wanted])
        n_done += n_wanted
        run += 1


def _read_exactly(fd: int, offset: int, out: Bytes) -> None:
    n_done = 0
    while n_done < len(out):
        n_read = _read_into(fd, out[n_done : n_done + _MAX_READ_BYTES], offset + n_done)
        if not n_read:
            raise OSError(f"the file ends at byte {offset + n_done}")
        n_done += n_read


def _read_into(fd: int, out: npt.NDArray[Any], offset: int) -> int:
    """Fill a contiguous array from an offset on; return how many bytes the file gave."""
    # macOS has it from version 11 on.
    preadv = getattr(os, "preadv", None)
    if preadv is not None:
        return int(preadv(fd, [out.data], offset))
    data = os.pread(fd, out.nbytes, offset)
    out.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)
