"""Columns of the row groups that were read last, kept in memory for queries that come one at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

import numpy as np
import polars as pl

from bertfeat.records import IntArray
from bertfeat.storage import AnyPath
from bertfeat.store.vectors import StoredPart, group_rows, opened_part, read_groups

_MAX_BYTES = 64 << 20

_Key = tuple[AnyPath, tuple[str, ...], int]


class KeptGroups:
    """Reader of rows of parts that keeps what it decoded, at most `max_bytes`; threads may share it.

    The hits of a query are in as many row groups as there are hits. To open a part and to decode a row group takes
    longer than to search an index.
    """

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        # The first row of each row group of a part, then the number of rows.
        self._starts: dict[AnyPath, IntArray] = {}
        # The last used ones last.
        self._kept: OrderedDict[_Key, pl.DataFrame] = OrderedDict()
        self._lock = threading.Lock()

    def groups(self, part: StoredPart, rows: IntArray, names: Sequence[str]) -> tuple[list[pl.DataFrame], IntArray]:
        """Return columns of the row groups that hold some rows of a part, ascending, one or more.

        Returns:
            The row groups, in order, and the place of each row in all of them together.

        Raises:
            StoreError: The part is missing or damaged.
        """
        starts = self._starts.get(part.path)
        if starts is None:
            with opened_part(part) as file:
                self._starts[part.path] = starts = np.cumsum([0, *group_rows(file)])
        homes = np.searchsorted(starts, rows, side="right") - 1
        needed, places = np.unique(homes, return_inverse=True)
        firsts = np.cumsum([0, *np.diff(starts)[needed]])
        return self._frames(part, needed.tolist(), tuple(names)), firsts[places] + rows - starts[homes]

    def _frames(self, part: StoredPart, groups: list[int], names: tuple[str, ...]) -> list[pl.DataFrame]:
        """Return columns of row groups; those that are not kept are read."""
        keys = [(part.path, names, group) for group in groups]
        with self._lock:
            found = {key: self._kept[key] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        missing = [key for key in keys if key not in found]
        if missing:
            with opened_part(part) as file:
                found |= {
                    key: cast("pl.DataFrame", pl.from_arrow(read_groups(file, [key[2]], names))) for key in missing
                }
            self._keep({key: found[key] for key in missing})
        return [found[key] for key in keys]

    def _keep(self, frames: dict[_Key, pl.DataFrame]) -> None:
        """Keep row groups, and drop the least recently used ones beyond the bound."""
        with self._lock:
            # Another thread may have read the same.
            new = {key: frame for key, frame in frames.items() if key not in self._kept}
            self._kept |= new
            self._n_bytes += sum(int(frame.estimated_size()) for frame in new.values())
            while self._n_bytes > self._max_bytes:
                self._n_bytes -= int(self._kept.popitem(last=False)[1].estimated_size())
