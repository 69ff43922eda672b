"""Columns of the row groups that were read last, kept in memory for queries that come one at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa

from bertfeat.records import IntArray
from bertfeat.storage import AnyPath
from bertfeat.store.schema import arrow_array
from bertfeat.store.vectors import StoredPart, group_rows, opened_part, read_groups, reading

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
        self._tables: OrderedDict[_Key, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, part: StoredPart, rows: IntArray, names: Sequence[str]) -> pl.DataFrame:
        """Return columns of some rows of a part, ascending, one or more.

        Raises:
            StoreError: The part is missing or damaged.
        """
        starts = self._starts.get(part.path)
        if starts is None:
            with opened_part(part) as file:
                self._starts[part.path] = starts = np.cumsum([0, *group_rows(file)])
        homes = np.searchsorted(starts, rows, side="right") - 1
        groups, places = np.unique(homes, return_inverse=True)
        tables = self._groups(part, groups.tolist(), tuple(names))
        # The first row of each group in the table of the groups that are read.
        firsts = np.cumsum([0, *np.diff(starts)[groups]])
        chosen = arrow_array(firsts[places] + rows - starts[homes], pa.int64())
        with reading(part.path):
            return cast("pl.DataFrame", pl.from_arrow(pa.concat_tables(tables).take(chosen)))

    def _groups(self, part: StoredPart, groups: list[int], names: tuple[str, ...]) -> list[pa.Table]:
        """Return columns of row groups; those that are not kept are read."""
        keys = [(part.path, names, group) for group in groups]
        with self._lock:
            found = {key: self._tables[key] for key in keys if key in self._tables}
            for key in found:
                self._tables.move_to_end(key)
        missing = [key for key in keys if key not in found]
        if missing:
            with opened_part(part) as file:
                found |= {key: read_groups(file, [key[2]], names) for key in missing}
            self._keep({key: found[key] for key in missing})
        return [found[key] for key in keys]

    def _keep(self, tables: dict[_Key, pa.Table]) -> None:
        """Keep tables, and drop the least recently used ones beyond the bound."""
        with self._lock:
            # Another thread may have read the same.
            new = {key: table for key, table in tables.items() if key not in self._tables}
            self._tables |= new
            self._n_bytes += sum(table.nbytes for table in new.values())
            while self._n_bytes > self._max_bytes:
                self._n_bytes -= self._tables.popitem(last=False)[1].nbytes
