"""Row map of an index: the row of the level, document and characters that each vector comes from.

A Parquet file with one row per vector, in order: `part` (the shard's number), `row` (of the level), `doc_id`, and if
the level has them `token_index`, `word_index`, `segment`, `char_start` and `char_end`. `row` is ascending. The digest
in `index.json` is checked before the file is opened.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.records import IntArray

FIXED = {"part": pa.int32(), "row": pa.int64()}
# In this order. `segment` is the text of a pair that the characters belong to.
PLACES = ("token_index", "word_index", "segment", "char_start", "char_end")


class RowMap:
    """The column `row` of a row map, read one row group at a time, when it is asked for; threads may share it.

    Positions are those of the index, from 0; -1 stands for no hit.
    """

    def __init__(self, path: Path) -> None:
        # pyarrow takes a relative path that starts with `a:` for a URL.
        self._file = pq.ParquetFile(path.absolute())
        # The reader of a file is not thread-safe.
        self._lock = threading.Lock()
        groups = (self._file.metadata.row_group(group) for group in range(self._file.metadata.num_row_groups))
        self._starts: IntArray = np.cumsum([0, *(group.num_rows for group in groups)], dtype=np.int64)
        self._known: dict[int, IntArray] = {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, positions: IntArray) -> IntArray:
        """Return the row of the level for each position, int64 of the same shape; -1 for -1."""
        found = np.full(positions.shape, -1, np.int64)
        homes = np.searchsorted(self._starts, positions, side="right") - 1
        for group in np.unique(homes[positions >= 0]).tolist():
            here = homes == group
            found[here] = self._rows_of(group)[positions[here] - self._starts[group]]
        return found

    def all_rows(self) -> IntArray:
        """Return the row of each position, int64 (n_positions,), ascending."""
        return np.concatenate([np.zeros(0, np.int64), *map(self._rows_of, range(len(self._starts) - 1))])

    def _rows_of(self, group: int) -> IntArray:
        """Return the rows of a row group, which are kept, at 8 bytes each."""
        with self._lock:
            if group not in self._known:
                self._known[group] = self._file.read_row_group(group, columns=["row"])["row"].to_numpy()
            return self._known[group]
