"""Reader of the vectors of one part: copied from the places in the manifest, or decoded if it has none."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.durable import files
from bertfeat.records import BoolArray, IntArray
from bertfeat.store.plain import PlainColumn, read_rows, take_rows
from bertfeat.store.vectors import (
    Piece,
    StoredPart,
    VectorSource,
    add_layers,
    check_size,
    fill,
    group_rows,
    opened_part,
    read_groups,
    reading,
)

# Sums are computed in blocks of this many values, which stay in the processor's cache.
_BLOCK_VALUES = 1 << 17


class CheckedParts:
    """The local parts whose digest was found right; all readers of a store share them."""

    def __init__(self) -> None:
        self._checked: set[tuple[object, ...]] = set()
        # Of several threads that read one part, one checks it and the others wait.
        self._lock = threading.Lock()

    def check(self, part: StoredPart) -> None:
        """Refuse a local part whose bytes are not those that were written; reads it whole, once for all readers.

        A decoder may turn a damaged level or encoding into other vectors. Vectors that are copied from known places
        depend on no other bytes of the file.

        Raises:
            ValueError: The part has another digest.
            OSError: The part cannot be read.
        """
        if not isinstance(part.path, Path):
            return
        status = part.path.stat()
        identity = part.path, status.st_ino, status.st_size, status.st_mtime_ns
        with self._lock:
            if identity not in self._checked:
                if files.digest_of(part.path, follow_links=True) != part.info.digest:
                    raise ValueError("its bytes are not those that were written")
                self._checked.add(identity)


@contextlib.contextmanager
def opened_vectors(
    part: StoredPart, source: VectorSource, checked: CheckedParts, *, use_threads: bool = False
) -> Iterator[PartVectors]:
    """Open a part for reading vectors; `use_threads` lets pyarrow decode with its own threads.

    Raises:
        StoreError: The part is missing or damaged, now or while it is read.
    """
    with reading(part.path), contextlib.ExitStack() as stack:
        yield PartVectors(part, source, checked, use_threads, stack)


class PartVectors:
    """A part that is open for reading vectors; made by `opened_vectors`."""

    def __init__(
        self,
        part: StoredPart,
        source: VectorSource,
        checked: CheckedParts,
        use_threads: bool,
        stack: contextlib.ExitStack,
    ) -> None:
        self._part = part
        self._source = source
        self._checked = checked
        self._use_threads = use_threads
        self._stack = stack
        self._decoded: tuple[int, pa.Table] | None = None
        self._frame: tuple[int, pl.DataFrame] | None = None
        # Where the columns lie in the file that is open at `_fd`; None if they must be decoded.
        self._plain: dict[str, PlainColumn] | None = None
        path, runs = part.path, part.info.runs
        if runs is not None and isinstance(path, Path) and sys.byteorder == "little":
            self._fd = stack.enter_context(_descriptor(part, path))
            widths = {feature.name: feature.dim * part.vectors.numpy.itemsize for feature in part.schema.features}
            self._plain = {
                name: PlainColumn(widths[name], self._starts, np.array(runs.offsets[name], np.int64))
                for name in source.columns
            }

    def read(self, rows: range | IntArray, out: npt.NDArray[Any]) -> None:
        """Read the vectors of some rows; null vectors become NaN.

        Args:
            rows: Rows of the part: consecutive, or ascending without repeats.
            out: (len(rows), dim), of the stored type; receives the vectors. Each of its rows is contiguous.

        Raises:
            StoreError: The part is damaged (by way of `opened_vectors`).
        """
        if not len(rows):
            return
        for group, places, chosen in [(0, slice(None), rows)] if self._plain else self._by_group(rows):
            if self._source.adds:
                self._add(group, chosen, out[places])
                continue
            for piece in self._source.pieces:
                self._copy(group, chosen, piece, out[places, piece.target : piece.target + piece.width])

    def columns(self, rows: range, names: Sequence[str]) -> pl.DataFrame:
        """Return further columns of consecutive rows; `names` must be the same in each call, since rows are kept."""
        if not names:
            return pl.DataFrame(height=len(rows))
        return pl.concat([self._columns(g, names).slice(at.start, len(at)) for g, _, at in self._by_group(rows)])

    def valid(self) -> BoolArray:
        """Return bool (n_rows,): which rows have a vector. Reads nothing if the vectors can be copied."""
        if self._part.info.runs is not None:
            return np.ones(self._part.info.n_rows, np.bool_)
        column = self._source.columns[0]
        flags = [self._table(group).column(column).is_valid().to_numpy() for group in range(len(self._starts) - 1)]
        return np.concatenate([np.ones(0, np.bool_), *flags])

    def _add(self, group: int, rows: range | IntArray, out: npt.NDArray[Any]) -> None:
        step = max(1, _BLOCK_VALUES // out.shape[1])
        layer = np.empty((min(step, len(rows)), out.shape[1]), out.dtype)
        for start in range(0, len(rows), step):
            chosen = rows[start : start + step]
            block = layer[: len(chosen)]
            layers = (self._copy(group, chosen, piece, block) for piece in self._source.pieces)
            add_layers(layers, self._source.combine, out[start : start + step])

    def _copy(self, group: int, rows: range | IntArray, piece: Piece, out: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Read a piece of some rows (of a row group, if the part must be decoded), and return `out`."""
        if self._plain is None:
            column = self._table(group).column(piece.column)
            chosen = column.slice(rows.start, len(rows)) if isinstance(rows, range) else column.take(pa.array(rows))
            fill(out, chosen, piece, self._part.vectors)
        elif isinstance(rows, range):
            read_rows(self._fd, self._plain[piece.column], rows.start, piece.start, out)
        else:
            take_rows(self._fd, self._plain[piece.column], rows, piece.start, out)
        return out

    def _by_group(self, rows: range | IntArray) -> Iterator[tuple[int, slice, Any]]:
        """Yield each needed row group, the places in `rows` that it holds, and their rows in the group."""
        first, last = np.searchsorted(self._starts, [rows[0], rows[-1]], side="right") - 1
        for group in range(int(first), int(last) + 1):
            start, stop = int(self._starts[group]), int(self._starts[group + 1])
            if isinstance(rows, range):
                begin, end = max(start, rows.start), min(stop, rows.stop)
                yield group, slice(begin - rows.start, end - rows.start), range(begin - start, end - start)
            else:
                places = slice(*np.searchsorted(rows, [start, stop]).tolist())
                if len(rows[places]):
                    yield group, places, rows[places] - start

    @functools.cached_property
    def _starts(self) -> IntArray:
        """The first row of each row group, then the number of rows."""
        runs = self._part.info.runs
        return np.cumsum([0, *(group_rows(self._file) if runs is None else runs.rows)], dtype=np.int64)

    @functools.cached_property
    def _file(self) -> pq.ParquetFile:
        return self._stack.enter_context(opened_part(self._part))

    def _columns(self, group: int, names: Sequence[str]) -> pl.DataFrame:
        if self._frame is None or self._frame[0] != group:
            self._frame = None
            self._frame = (group, cast("pl.DataFrame", pl.from_arrow(read_groups(self._file, [group], names))))
        return self._frame[1]

    def _table(self, group: int) -> pa.Table:
        if self._decoded is None or self._decoded[0] != group:
            self._decoded = None  # free it before the next one is read
            self._checked.check(self._part)
            table = read_groups(self._file, [group], self._source.columns, use_threads=self._use_threads)
            self._decoded = (group, table)
        return self._decoded[1]


@contextlib.contextmanager
def _descriptor(part: StoredPart, path: Path) -> Iterator[int]:
    """Open a local part for reads at any offset, and check its size."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        check_size(part, os.fstat(fd).st_size)
        yield fd
    finally:
        os.close(fd)
