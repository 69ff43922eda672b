"""The vectors of one part, a row group at a time: copied as they stand where they can be, else decoded by pyarrow."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.config import Combine
from bertfeat.durable import files
from bertfeat.records import BoolArray, IntArray
from bertfeat.store.pages import ColumnChunk, NotPlain, Runs, find_chunks, find_runs
from bertfeat.store.parts import read_part_metadata
from bertfeat.store.plain import read_rows, take_rows
from bertfeat.store.vectors import Piece, StoredPart, VectorSource, fill, opened_part, read_group

# Sums are made of so many values at a time, which stay in the processor's cache.
_BLOCK_VALUES = 1 << 17


@dataclass(frozen=True, slots=True)
class KnownRuns:
    """What readers of a store found out about its parts, by file (and what it was when that was found).

    Attributes:
        chunks: The place of a column in each row group, also by column; None where it has to be decoded.
        runs: Where its values lie, also by row group and column; None where they have to be decoded.
        whole: The parts that have their digest.
        lock: Held while a digest is made: threads that read one part wait for one of them.
    """

    chunks: dict[tuple[object, ...], list[ColumnChunk | None]] = field(default_factory=dict)
    runs: dict[tuple[object, ...], Runs | None] = field(default_factory=dict)
    whole: set[tuple[object, ...]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def opened_vectors(
    part: StoredPart, source: VectorSource, known: KnownRuns, *, use_threads: bool = False
) -> Iterator[PartVectors]:
    """Open a part for reading vectors.

    Args:
        part: The part.
        source: What to read of it.
        known: What earlier readers found; what this one finds is added.
        use_threads: Let pyarrow decode with threads of its own.

    Raises:
        StoreError: It is missing or damaged, now or while it is read.
    """
    with opened_part(part) as file, _descriptor(part.path) as fd:
        yield PartVectors(part, file, fd, source, known, use_threads)


@contextlib.contextmanager
def _descriptor(path: object) -> Iterator[int | None]:
    """Open a local file for reads at any place; None for a file that lies elsewhere."""
    if not isinstance(path, Path):
        yield None
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


class PartVectors:
    """A part that is open for reading vectors; made by `opened_vectors`."""

    def __init__(
        self,
        part: StoredPart,
        file: pq.ParquetFile,
        fd: int | None,
        source: VectorSource,
        known: KnownRuns,
        use_threads: bool,
    ) -> None:
        self.file = file
        self._part = part
        self._fd = fd
        self._source = source
        self._known = known
        self._use_threads = use_threads
        self._decoded: tuple[int, pa.Table] | None = None
        self._frame: tuple[int, pl.DataFrame] | None = None
        self._identity = (part.path,) if fd is None else _identity_of(part, os.fstat(fd))

    @property
    def n_groups(self) -> int:
        """The row groups of the part."""
        return int(self.file.num_row_groups)

    def n_rows(self, group: int) -> int:
        """Return the rows of a row group."""
        return int(self.file.metadata.row_group(group).num_rows)

    def read(self, group: int, rows: range | IntArray, out: npt.NDArray[Any]) -> None:
        """Read the vectors of some rows of a row group; null vectors become NaN.

        Args:
            group: The row group.
            rows: Its rows, counted from 0: consecutive, or ascending without repeats.
            out: (len(rows), dim), of the stored type; takes the vectors. Its rows lie in one piece each.

        Raises:
            StoreError: The part is damaged (by way of `opened_vectors`).
        """
        if not len(rows):
            return
        columns = {name: self._runs(group, name) for name in self._source.columns}
        found = {name: runs for name, runs in columns.items() if runs is not None}
        if self._fd is None or len(found) < len(columns):
            table = self._table(group)
            chosen = table.slice(rows.start, len(rows)) if isinstance(rows, range) else table.take(pa.array(rows))
            fill(out, chosen, self._source, self._part.vectors)
        elif self._source.adds:
            self._add(self._fd, found, rows, out)
        else:
            for piece in self._source.pieces:
                target = out[:, piece.target : piece.target + piece.width]
                _copy(self._fd, found[piece.column], rows, piece, target)

    def columns(self, group: int, names: Sequence[str]) -> pl.DataFrame:
        """Return further columns of a row group; the last that were read are kept, and are of the same names."""
        if self._frame is None or self._frame[0] != group:
            self._frame = None
            if names:
                frame = cast("pl.DataFrame", pl.from_arrow(read_group(self.file, group, names)))
            else:
                frame = pl.DataFrame(height=self.n_rows(group))
            self._frame = (group, frame)
        return self._frame[1]

    def _add(self, fd: int, found: dict[str, Runs], rows: range | IntArray, out: npt.NDArray[Any]) -> None:
        """Add the pieces up in float32 and round once, as `fill` does."""
        step = max(1, _BLOCK_VALUES // out.shape[1])
        layer = np.empty((min(step, len(rows)), out.shape[1]), out.dtype)
        total = np.empty(layer.shape, np.float32)
        for start in range(0, len(rows), step):
            chosen = rows[start : start + step]
            total[:] = 0
            for piece in self._source.pieces:
                _copy(fd, found[piece.column], chosen, piece, layer[: len(chosen)])
                total[: len(chosen)] += layer[: len(chosen)]
            if self._source.combine is Combine.MEAN:
                total /= len(self._source.pieces)
            out[start : start + step] = total[: len(chosen)]

    def valid(self) -> BoolArray:
        """Return bool (n_rows,): which rows have a vector. Decodes no column that can be copied."""
        column = self._source.columns[0]
        metadata = json.loads(read_part_metadata(self.file.metadata.metadata) or "{}")
        if self._fd is None and isinstance(metadata, dict) and metadata.get("n_null_vectors") == 0:
            return np.ones(self._part.info.n_rows, np.bool_)
        flags = [np.ones(0, np.bool_)]
        for group in range(self.n_groups):
            if self._runs(group, column) is not None:
                flags.append(np.ones(self.n_rows(group), np.bool_))
            else:
                flags.append(self._table(group).column(column).is_valid().to_numpy())
        return np.concatenate(flags)

    def _runs(self, group: int, name: str) -> Runs | None:
        """Find where a column lies; None if it has to be decoded."""
        key = (*self._identity, group, name)
        if self._fd is not None and key not in self._known.runs:
            chunk, runs = self._chunks(self._fd, name)[group], None
            if chunk is not None:
                with contextlib.suppress(NotPlain):
                    runs = find_runs(self._fd, chunk)
            self._known.runs[key] = runs
        return self._known.runs.get(key)

    def _chunks(self, fd: int, name: str) -> list[ColumnChunk | None]:
        key = (*self._identity, name)
        if key not in self._known.chunks:
            self._known.chunks[key] = find_chunks(fd, self.file, name, self._part.vectors)
        return self._known.chunks[key]

    def _table(self, group: int) -> pa.Table:
        if self._decoded is None or self._decoded[0] != group:
            self._decoded = None  # let go of it before another is read
            check_digest(self._part, self._known)
            table = read_group(self.file, group, self._source.columns, use_threads=self._use_threads)
            self._decoded = (group, table)
        return self._decoded[1]


def check_digest(part: StoredPart, known: KnownRuns) -> None:
    """Refuse a local part whose bytes are not those that were written; reads it whole, once for all readers.

    What is copied depends on nothing that can be damaged without being seen. A decoder takes a damaged level or
    encoding for other vectors.

    Raises:
        ValueError: The part has another digest.
        OSError: It cannot be read.
    """
    if not isinstance(part.path, Path):
        return
    status = part.path.stat()
    identity = _identity_of(part, status)
    with known.lock:
        if identity not in known.whole:
            if files.digest_of(part.path, follow_links=True) != part.info.digest:
                raise ValueError("its bytes are not those that were written")
            known.whole.add(identity)


def _identity_of(part: StoredPart, status: os.stat_result) -> tuple[object, ...]:
    return part.path, status.st_ino, status.st_size, status.st_mtime_ns


def _copy(fd: int, runs: Runs, rows: range | IntArray, piece: Piece, out: npt.NDArray[Any]) -> None:
    if isinstance(rows, range):
        read_rows(fd, runs, rows.start, piece.start, out)
    else:
        take_rows(fd, runs, rows, piece.start, out)
