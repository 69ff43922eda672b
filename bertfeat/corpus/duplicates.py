"""Register that finds repeated ids in a corpus of any size, in bounded memory."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.errors import InputError
from bertfeat.records import DocId

MAX_MEMORY_BYTES = 64 * 1024 * 1024
_N_PARTITIONS = 256

_ENTRY = struct.Struct("<QQq")
_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("index", "<i8")])


@dataclass(frozen=True, slots=True)
class IdDigests:
    """The digests of ids, ascending: `high` and `low` are uint64 (n_ids,), the two halves of each."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, ids: Iterable[DocId]) -> Self:
        """Return the digests of ids."""
        entries = bytearray()
        for doc_id in ids:
            entries += _pack(doc_id, 0)
        found = _as_array(entries)
        return cls(found["high"], found["low"]).merged()

    def merged(self, *others: Self) -> Self:
        """Return these digests and others, ascending, each once."""
        high = np.concatenate([self.high, *(other.high for other in others)])
        low = np.concatenate([self.low, *(other.low for other in others)])
        order = np.lexsort((low, high))
        high, low = high[order], low[order]
        is_new = np.ones(len(high), np.bool_)
        is_new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        return type(self)(high[is_new], low[is_new])

    def first_in(self, entries: npt.NDArray[np.void]) -> int | None:
        """Return the lowest index of a register's entries with an id that is among these; None if no entry has one."""
        start = np.searchsorted(self.high, entries["high"], "left")
        stop = np.searchsorted(self.high, entries["high"], "right")
        near = np.flatnonzero(stop > start)
        found = (at for at in near if entries["low"][at] in self.low[start[at] : stop[at]])
        return min((int(entries["index"][at]) for at in found), default=None)


class IdRegister(AbstractContextManager["IdRegister"]):
    """Takes any number of ids and finds the first one that appears twice.

    For each id it keeps a hash of 128 bits (among a billion ids, two have the same one with a chance of 1e-21) and the
    row's index, 24 bytes. Beyond `max_memory` bytes they go to disk, in partitions by hash that are checked in turn.

    Examples:
        >>> with IdRegister() as register:
        ...     for index, doc_id in enumerate(["a", "b", "a"]):
        ...         register.add(index, doc_id)
        ...     register.find_duplicate()
        (0, 2)
    """

    def __init__(self, max_memory: int | None = None) -> None:
        self._max_memory = MAX_MEMORY_BYTES if max_memory is None else max_memory
        self._entries = bytearray()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, index: int, doc_id: DocId) -> None:
        """Take the id of row `index`; ids 1 and "1" are the same."""
        self._entries += _pack(doc_id, index)
        if len(self._entries) >= self._max_memory:
            with _disk_errors():
                self._spill()

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="bertfeat-ids-", ignore_cleanup_errors=True)
        entries = _as_array(self._entries)
        partitions = (entries["high"] % _N_PARTITIONS).astype(np.uint8)
        for number in range(_N_PARTITIONS):
            if len(mine := entries[partitions == number]):
                with Path(self._folder.name, str(number)).open("ab") as file:
                    file.write(mine.tobytes())
        self._entries = bytearray()

    def find_duplicate(self) -> tuple[int, int] | None:
        """Return the first row, in corpus order, with the id of an earlier row: the index of that one, and its own."""
        with _disk_errors():
            found = (_first_duplicate(entries) for entries in self._partitions())
            return min((pair for pair in found if pair is not None), key=lambda pair: pair[1], default=None)

    def find_known(self, known: IdDigests) -> int | None:
        """Return the index of the first row whose id is among other ids."""
        with _disk_errors():
            found = (known.first_in(entries) for entries in self._partitions())
            return min((index for index in found if index is not None), default=None)

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
    """Name the folder for temporary files if it cannot be used."""
    try:
        yield
    except OSError as error:
        where = error.filename or tempfile.tempdir or "the folder for temporary files"
        raise InputError(
            f"the ids do not fit in memory, and {where} cannot hold them ({error.strerror or error}); free space "
            "there, or set TMPDIR to another folder"
        ) from error


def _pack(doc_id: DocId, index: int) -> bytes:
    number = xxhash.xxh3_128_intdigest(str(doc_id).encode())
    return _ENTRY.pack(number >> 64, number & 0xFFFF_FFFF_FFFF_FFFF, index)


def _as_array(entries: bytes | bytearray) -> npt.NDArray[np.void]:
    # A copy, since a view would lock the bytearray's size.
    return np.frombuffer(bytes(entries), dtype=_DTYPE)


def _first_duplicate(entries: npt.NDArray[np.void]) -> tuple[int, int] | None:
    ordered = entries[np.lexsort((entries["index"], entries["low"], entries["high"]))]
    same = (ordered["high"][1:] == ordered["high"][:-1]) & (ordered["low"][1:] == ordered["low"][:-1])
    seconds = np.flatnonzero(same) + 1
    if not len(seconds):
        return None
    place = seconds[np.argmin(ordered["index"][seconds])]
    return int(ordered["index"][place - 1]), int(ordered["index"][place])
