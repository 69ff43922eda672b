"""Register that finds repeated ids in a corpus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.records import DocId


@dataclass(frozen=True, slots=True)
class IdDigests:
    """The digests of ids, ascending: `high` and `low` are uint64 (n_ids,), the two halves of each."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, ids: Iterable[DocId]) -> Self:
        """Return the digests of ids."""
        return cls(*_halves(b"".join(map(_digest, ids)))).merged()

    def merged(self, *others: Self) -> Self:
        """Return these digests and others, ascending, each once."""
        high = np.concatenate([self.high, *(other.high for other in others)])
        low = np.concatenate([self.low, *(other.low for other in others)])
        order = np.lexsort((low, high))
        is_new = np.append([True], ~_same(high, low, order))[: len(order)]
        return type(self)(high[order][is_new], low[order][is_new])


class IdRegister:
    """Takes ids, and finds the first one that appears twice.

    For each id it keeps a hash of 128 bits, 16 bytes: among a billion ids, the chance that two share a hash is 1e-21.
    Ids 1 and "1" are the same.

    Examples:
        >>> register = IdRegister()
        >>> for doc_id in ["a", "b", "a"]:
        ...     register.add(doc_id)
        >>> register.find_duplicate()
        (0, 2)
    """

    def __init__(self) -> None:
        self._digests = bytearray()

    def add(self, doc_id: DocId) -> None:
        """Take an id."""
        self._digests += _digest(doc_id)

    def find_duplicate(self) -> tuple[int, int] | None:
        """Return the number of the first id that an earlier one equals, after that of the earlier one."""
        high, low = _halves(bytes(self._digests))
        order = np.lexsort((low, high))
        # The sort is stable: of equal ids, the earlier one comes first.
        seconds = np.flatnonzero(_same(high, low, order)) + 1
        if not len(seconds):
            return None
        at = seconds[np.argmin(order[seconds])]
        return int(order[at - 1]), int(order[at])

    def find_known(self, known: IdDigests) -> int | None:
        """Return the number of the first id that is among others."""
        high, low = _halves(bytes(self._digests))
        start, stop = (np.searchsorted(known.high, high, side) for side in ("left", "right"))
        near = np.flatnonzero(stop > start)
        return next((int(at) for at in near if low[at] in known.low[start[at] : stop[at]]), None)


def _digest(doc_id: DocId) -> bytes:
    return xxhash.xxh3_128_digest(str(doc_id).encode())


def _halves(digests: bytes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    found = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    return found[:, 0].copy(), found[:, 1].copy()


def _same(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64], order: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Return whether each digest in an order, from the second on, equals the one before it: bool (n - 1,)."""
    found: npt.NDArray[Any] = (np.diff(high[order]) == 0) & (np.diff(low[order]) == 0)
    return found
