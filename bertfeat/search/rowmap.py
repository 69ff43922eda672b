"""Row map of an index: the row of the level, document and characters that each vector comes from.

A Parquet file with one row per vector, in order: `part` (the shard's number), `row` (of the level), `doc_id`, and if
the level has them `token_index`, `word_index`, `segment`, `char_start` and `char_end`. `row` is ascending. The digest
in `index.json` is checked before the file is opened.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.errors import StoreError, UserError
from bertfeat.records import IntArray

FIXED = {"part": pa.int32(), "row": pa.int64()}
# In this order. `segment` is the text of a pair that the characters belong to.
PLACES = ("token_index", "word_index", "segment", "char_start", "char_end")


class RowMap:
    """A row map open for reading; reads only what is asked for, and must stay open while it is used.

    Positions are those of the index, 0 to `len(row_map) - 1`; -1 stands for no hit.

    Raises:
        StoreError: The file is missing or cannot be read; or a later read meets damage.
        UserError: From each method: a position or column does not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # Row groups are read one at a time: the reader of a file is not thread-safe.
        self._lock = threading.Lock()
        with self._errors():
            # pyarrow takes a relative path that starts with `a:` for a URL.
            self._file = pq.ParquetFile(self.path.absolute(), page_checksum_verification=True)
            metadata = self._file.metadata
            counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts: IntArray = np.cumsum([0, *counts], dtype=np.int64)
        self._rows: dict[int, IntArray] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self._file.schema_arrow.names)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, positions: npt.ArrayLike) -> IntArray:
        """Return the row of the level for each position, int64 of the same shape; -1 for -1."""
        asked = self._checked(positions, lowest=-1)
        out = np.full(asked.shape, -1, np.int64)
        there = asked >= 0
        numbers = asked[there]
        found = np.empty(len(numbers), np.int64)
        for group, places in self._by_group(numbers):
            found[places] = self._rows_of(group)[numbers[places] - self._starts[group]]
        out[there] = found
        return out

    def all_rows(self) -> IntArray:
        """Return the row of each position, int64 (n_positions,), ascending."""
        return np.concatenate([np.zeros(0, np.int64), *(self._rows_of(group) for group in range(self._n_groups))])

    def frame(self, positions: npt.ArrayLike, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the columns (all by default) of positions, int (n,), as a frame with one row per position."""
        names = list(self.columns if columns is None else columns)
        for name in names:
            if name not in self.columns:
                raise UserError(f"{self.path}: no column {name!r}; columns are {', '.join(self.columns)}")
        asked = self._checked(positions, lowest=0).reshape(-1)
        tables, order = [self._file.schema_arrow.empty_table().select(names)], [np.zeros(0, np.int64)]
        for group, places in self._by_group(asked):
            tables.append(self._read(group, names).take(pa.array(asked[places] - self._starts[group])))
            order.append(places)
        found = cast("pl.DataFrame", pl.from_arrow(pa.concat_tables(tables).replace_schema_metadata(None)))
        return found[np.argsort(np.concatenate(order), kind="stable")]

    @property
    def _n_groups(self) -> int:
        return len(self._starts) - 1

    def _by_group(self, positions: IntArray) -> Iterator[tuple[int, IntArray]]:
        """Yield each needed row group, and which of the positions it holds."""
        home = np.searchsorted(self._starts[1:], positions, side="right")
        order = np.argsort(home, kind="stable")
        groups, firsts = np.unique(home[order], return_index=True)
        # With no positions, np.split still returns one empty piece.
        yield from zip(groups.tolist(), np.split(order, firsts[1:]), strict=False)

    def _rows_of(self, group: int) -> IntArray:
        """Return the rows of a row group, which are kept, at 8 bytes each."""
        found = self._rows.get(group)
        if found is None:
            found = self._rows[group] = self._read(group, ["row"])["row"].to_numpy()
        return found

    def _read(self, group: int, names: list[str]) -> pa.Table:
        with self._errors(), self._lock:
            table = self._file.read_row_group(group, columns=names).select(names)
            if table.num_rows != self._starts[group + 1] - self._starts[group]:
                raise ValueError(f"row group {group} has {table.num_rows} rows")
            return table

    def _checked(self, positions: npt.ArrayLike, *, lowest: int) -> IntArray:
        numbers = _whole_numbers(positions)
        outside = numbers[(numbers < lowest) | (numbers >= len(self))]
        if outside.size:
            raise UserError(f"{self.path}: no position {outside.flat[0]}; it has {len(self)}")
        return numbers

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise StoreError(f"{self.path}: cannot be read: {reason}; build the index again") from error


def _whole_numbers(positions: npt.ArrayLike) -> IntArray:
    numbers = np.asarray(positions)
    if numbers.size == 0:
        return np.zeros(numbers.shape, np.int64)
    if numbers.dtype.kind not in "iu":
        raise UserError(f"positions of type {numbers.dtype}; pass whole numbers")
    return numbers.astype(np.int64)
