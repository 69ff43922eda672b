"""Register that finds repeated ids in a corpus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from bertfeat.records import DocId


class IdRegister:
    """Takes ids, and finds the first one that appears twice.

    For each id it keeps a hash of 128 bits, 16 bytes: among a billion ids, the chance that two share a hash is 1e-21.
    Ids 1 and "1" are the same.

    Examples:
        >>> IdRegister(["a", "b", "a"]).find_duplicate()
        (0, 2)
    """

    def __init__(self, ids: Iterable[DocId] = ()) -> None:
        self._content = bytearray()
        for doc_id in ids:
            self.add(doc_id)

    def add(self, doc_id: DocId) -> None:
        """Take an id."""
        self._content += xxhash.xxh3_128_digest(str(doc_id).encode())

    @property
    def _digests(self) -> npt.NDArray[Any]:
        return np.frombuffer(self._content, "S16")

    def find_duplicate(self) -> tuple[int, int] | None:
        """Return the number of the first id that an earlier one equals, after that of the earlier one."""
        # The sort is stable: of equal ids, the earlier one comes first.
        order = np.argsort(self._digests, kind="stable")
        ordered = self._digests[order]
        seconds = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
        if not len(seconds):
            return None
        at = seconds[np.argmin(order[seconds])]
        return int(order[at - 1]), int(order[at])

    def find_known(self, known: IdRegister) -> int | None:
        """Return the number of the first id that is in another register."""
        ordered = np.sort(known._digests)
        start, stop = (np.searchsorted(ordered, self._digests, side) for side in ("left", "right"))
        found = np.flatnonzero(stop > start)
        return int(found[0]) if len(found) else None
