"""Reader of one part: its vectors, copied from their places or decoded, and its other columns."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.records import BoolArray, IntArray
from bertfeat.storage import AnyPath
from bertfeat.store.offsets import Rows, read_values, split_rows
from bertfeat.store.vectors import (
    Piece,
    StoredPart,
    VectorSource,
    add_layers,
    check_size,
    copy_decoded,
    group_rows,
    opened_part,
    read_groups,
    reading,
)

_KEPT_BYTES = 64 << 20
# Sums are computed in blocks of this many values, which stay in the processor's cache.
_BLOCK_VALUES = 1 << 17

# A part, columns and a row group.
_Key = tuple[str, tuple[str, ...], int]


class KeptGroups:
    """The columns of row groups that were decoded last, at most `max_bytes`; the readers of a store share them.

    The hits of a query are in as many row groups as there are hits. To open a part and to decode a row group takes
    longer than to search an index.
    """

    def __init__(self, max_bytes: int = _KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        # The last used ones last.
        self._kept: dict[_Key, pl.DataFrame] = {}
        self._lock = threading.Lock()
        # The first row of each row group, of parts whose footer was read for that.
        self.starts: dict[AnyPath, IntArray] = {}

    def get(self, key: _Key, read: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """Return columns of a row group, which are read if they are not kept."""
        with self._lock:
            frame = self._kept.pop(key, None)
            if frame is not None:
                self._kept[key] = frame
                return frame
        frame = read()
        with self._lock:
            # Another thread may have read the same.
            if key not in self._kept:
                self._kept[key] = frame
                self._n_bytes += int(frame.estimated_size())
            while self._n_bytes > self._max_bytes:
                self._n_bytes -= int(self._kept.pop(next(iter(self._kept))).estimated_size())
        return frame


@contextlib.contextmanager
def opened(part: StoredPart, kept: KeptGroups) -> Iterator[PartReader]:
    """Open a part for reading; damage that is found now, or while it is read, is a StoreError."""
    with reading(part.path), contextlib.ExitStack() as stack:
        yield PartReader(part, kept, stack)


class PartReader:
    """A part that is open for reading; made by `opened`."""

    def __init__(self, part: StoredPart, kept: KeptGroups, stack: contextlib.ExitStack) -> None:
        self._part, self._kept, self._stack = part, kept, stack
        # The vector columns of the row group that was decoded last: batches may begin inside of it.
        self._last: tuple[tuple[int, tuple[str, ...]], pa.Table] | None = None

    def read(self, source: VectorSource, rows: Rows, out: npt.NDArray[Any]) -> None:
        """Read the vectors of some rows, one or more, into `out` (len(rows), dim) of the stored type; NaN for null."""
        part = self._part
        if part.can_be_copied:
            _put_together(source, self._copy, rows, out)
            return
        part.check_digest()
        for group, chosen, found in split_rows(rows, self._starts):
            decode = functools.partial(copy_decoded, self._vectors(group, source.columns), part.vectors)
            _put_together(source, decode, found, out[chosen])

    def table(self, rows: range, names: Sequence[str]) -> pa.Table:
        """Return columns of consecutive rows, one or more, in the types of the file."""
        first, last = self._starts.searchsorted([rows.start, rows.stop - 1], side="right") - 1
        found = read_groups(self._file, range(first, last + 1), names)
        return found.slice(rows.start - int(self._starts[first]), len(rows))

    def groups(self, rows: Rows, names: Sequence[str]) -> list[tuple[pl.DataFrame, Any]]:
        """Return columns of each row group that holds some of the rows, and these rows counted from its first one."""
        columns = tuple(names)
        return [(self._frame(group, columns), found) for group, _, found in split_rows(rows, self._starts)]

    def valid(self, source: VectorSource) -> BoolArray:
        """Return bool (n_rows,): which rows have a vector. Reads nothing if the part has runs: then all have one."""
        if self._part.info.runs is not None:
            return np.ones(self._part.info.n_rows, np.bool_)
        self._part.check_digest()
        names = source.columns[:1]
        flags = [self._vectors(group, names).column(0).is_valid().to_numpy() for group in range(len(self._starts) - 1)]
        return np.concatenate([np.ones(0, np.bool_), *flags])

    def _copy(self, piece: Piece, rows: Rows, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return read_values(self._raw, self._part.offsets[piece.column], rows, piece.start, out)

    @functools.cached_property
    def _raw(self) -> FileIO:
        """The file of a local part, which has its size."""
        file = self._stack.enter_context(FileIO(str(self._part.path)))
        check_size(self._part, os.fstat(file.fileno()).st_size)
        return file

    @functools.cached_property
    def _file(self) -> pq.ParquetFile:
        return self._stack.enter_context(opened_part(self._part))

    @functools.cached_property
    def _starts(self) -> IntArray:
        """The first row of each row group, then the number of rows."""
        starts = self._kept.starts
        if self._part.path not in starts:
            runs = self._part.info.runs
            starts[self._part.path] = np.cumsum([0, *(group_rows(self._file) if runs is None else runs.rows)])
        return starts[self._part.path]

    def _frame(self, group: int, names: tuple[str, ...]) -> pl.DataFrame:
        def read() -> pl.DataFrame:
            return cast("pl.DataFrame", pl.from_arrow(read_groups(self._file, [group], names)))

        return self._kept.get((str(self._part.path), names, group), read)

    def _vectors(self, group: int, names: Sequence[str]) -> pa.Table:
        key = group, tuple(names)
        if self._last is None or self._last[0] != key:
            self._last = None  # free it before the next one is read
            self._last = key, read_groups(self._file, [group], names)
        return self._last[1]


def _put_together(
    source: VectorSource,
    read: Callable[[Piece, Any, npt.NDArray[Any]], npt.NDArray[Any]],
    rows: Rows,
    out: npt.NDArray[Any],
) -> None:
    """Make vectors in `out` of their pieces, each read by `read(piece, rows, out)`, which returns its `out`."""
    if not source.adds:
        target = 0
        for piece in source.pieces:
            read(piece, rows, out[:, target : target + piece.width])
            target += piece.width
        return
    step = max(1, _BLOCK_VALUES // source.dim)
    layer = np.empty((min(step, len(rows)), source.dim), out.dtype)
    for start in range(0, len(rows), step):
        block = out[start : start + step]
        layers = (read(piece, rows[start : start + step], layer[: len(block)]) for piece in source.pieces)
        add_layers(layers, source.combine, block)
