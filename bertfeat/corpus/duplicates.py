"""Finds ids that stand twice in a corpus of any size, in bounded memory."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.errors import InputError
from bertfeat.records import DocId

MAX_MEMORY_BYTES = 64 * 1024 * 1024
N_PARTITIONS = 256

_ENTRY = struct.Struct("<QQq")
_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("index", "<i8")])


class Duplicate(NamedTuple):
    """Two rows, by their indexes in the corpus, that have the same id."""

    first: int
    second: int


class IdRegister:
    """Takes ids in any number and tells whether one stands twice.

    An id is kept as its 128-bit hash (two different ids of a billion meet with a chance of 1e-21) with its row's index,
    24 bytes. Beyond `max_memory` bytes they go to disk, parted by their hashes, and are checked part by part.

    Example:
        >>> with IdRegister() as register:
        ...     for index, doc_id in enumerate(["a", "b", "a"]):
        ...         register.add(index, doc_id)
        ...     register.find_duplicate()
        Duplicate(first=0, second=2)
    """

    def __init__(self, max_memory: int | None = None) -> None:
        self._max_memory = MAX_MEMORY_BYTES if max_memory is None else max_memory
        self._entries = bytearray()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> IdRegister:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, index: int, doc_id: DocId) -> None:
        """Take the id of row `index`; ids 1 and "1" count as one."""
        number = xxhash.xxh3_128_intdigest(str(doc_id).encode())
        self._entries += _ENTRY.pack(number >> 64, number & 0xFFFF_FFFF_FFFF_FFFF, index)
        if len(self._entries) >= self._max_memory:
            with _disk_errors():
                self._spill()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="bertfeat-ids-", ignore_cleanup_errors=True)
        entries = _as_array(self._entries)
        partitions = entries["high"] % N_PARTITIONS
        order = np.argsort(partitions, kind="stable")
        ends = np.searchsorted(partitions[order], np.arange(1, N_PARTITIONS + 1))
        for number, rows in enumerate(np.split(order, ends[:-1])):
            if not len(rows):
                continue
            with Path(self._folder.name, str(number)).open("ab") as file:
                file.write(entries[rows].tobytes())
        self._entries = bytearray()

    def find_duplicate(self) -> Duplicate | None:
        """Return the first row, in corpus order, whose id stands before it already, with the row that had it."""
        with _disk_errors():
            found = (_first_duplicate(entries) for entries in self._partitions())
            return min((pair for pair in found if pair is not None), key=lambda pair: pair.second, default=None)

    def _partitions(self) -> Iterator[npt.NDArray[np.void]]:
        if self._folder is None:
            yield _as_array(self._entries)
            return
        if self._entries:
            self._spill()
        for path in Path(self._folder.name).iterdir():
            yield _as_array(path.read_bytes())


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Name the folder for temporary files where it cannot be used."""
    try:
        yield
    except OSError as error:
        where = error.filename or tempfile.tempdir or "the folder for temporary files"
        raise InputError(
            f"the ids do not fit in memory, and {where} cannot hold them ({error.strerror or error}); free space "
            "there, or set TMPDIR to another folder"
        ) from error


def _as_array(entries: bytes | bytearray) -> npt.NDArray[np.void]:
    # A copy, for a view would lock the bytearray's size.
    return np.frombuffer(bytes(entries), dtype=_DTYPE)


def _first_duplicate(entries: npt.NDArray[np.void]) -> Duplicate | None:
    ordered = entries[np.lexsort((entries["index"], entries["low"], entries["high"]))]
    same = (ordered["high"][1:] == ordered["high"][:-1]) & (ordered["low"][1:] == ordered["low"][:-1])
    seconds = np.flatnonzero(same) + 1
    if not len(seconds):
        return None
    place = seconds[np.argmin(ordered["index"][seconds])]
    return Duplicate(int(ordered["index"][place - 1]), int(ordered["index"][place]))
