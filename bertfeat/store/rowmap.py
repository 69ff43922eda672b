"""The row map of an index: which row of a level each vector comes from, its document, and its characters.

A Parquet file with a row for each vector, in order: `part` (the shard's number), `row` (of the level), `doc_id`, and
where the level has them `token_index`, `word_index`, `segment`, `char_start` and `char_end`. `row` ascends.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.durable.decoding import check_version
from bertfeat.errors import StoreError, UserError
from bertfeat.records import IntArray
from bertfeat.store import layout

FORMAT_VERSION = 1
KIND = "row map"
FIXED = {"part": pa.int32(), "row": pa.int64()}
# In this order. `segment` says which text of a pair the characters count in.
PLACES = ("token_index", "word_index", "segment", "char_start", "char_end")


class RowMap:
    """A row map open for reading: what is asked for is read, and no more; keep it open while it is used.

    Positions are those of the index, 0 to `len(row_map) - 1`; -1 stands for no hit.

    Args:
        path: The file.

    Raises:
        StoreError: It is missing, damaged, no row map, or of a newer format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        # Row groups are read one at a time: the reader of a file is not made for several threads.
        self._lock = threading.Lock()
        with self._errors():
            # A relative path that starts with `a:` would be taken for an address.
            self._file = pq.ParquetFile(self.path.absolute(), page_checksum_verification=True)
            try:
                _check_schema(self.path, self._file.schema_arrow)
            except (StoreError, ValueError):
                self.close()
                raise
            metadata = self._file.metadata
            counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts: IntArray = np.cumsum([0, *counts], dtype=np.int64)
        self._rows: dict[int, IntArray] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def level(self) -> str:
        """The level that the rows are of."""
        return str(_about(self._file.schema_arrow)["level"])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self._file.schema_arrow.names)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def rows(self, positions: npt.ArrayLike) -> IntArray:
        """Return the rows of the level that positions stand for, int64 of the same shape; -1 for -1.

        Raises:
            UserError: There is no such position.
            StoreError: The file is damaged.
        """
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
        """Return the row of each position, int64 (n_positions,), ascending.

        Raises:
            StoreError: The file is damaged.
        """
        return np.concatenate([np.zeros(0, np.int64), *(self._rows_of(group) for group in range(self._n_groups))])

    def frame(self, positions: npt.ArrayLike, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return what positions stand for as a frame with a row for each, in the order asked for.

        Args:
            positions: int (n,); -1 is none.
            columns: The columns; all by default.

        Raises:
            UserError: There is no such position or column.
            StoreError: The file is damaged.
        """
        names = list(self.columns if columns is None else columns)
        for name in names:
            if name not in self.columns:
                raise UserError(f"{self.path}: no column {name!r}; columns are {', '.join(self.columns)}")
        asked = self._checked(positions, lowest=0).reshape(-1)
        tables, order = [self._file.schema_arrow.empty_table().select(names)], [np.zeros(0, np.int64)]
        for group, places in self._by_group(asked):
            table = self._read(group, names).take(pa.array(asked[places] - self._starts[group]))
            with self._errors():
                # polars takes strings for UTF-8 unseen.
                table.validate(full=True)
            tables.append(table)
            order.append(places)
        found = cast("pl.DataFrame", pl.from_arrow(pa.concat_tables(tables).replace_schema_metadata(None)))
        return found[np.argsort(np.concatenate(order), kind="stable")]

    @property
    def _n_groups(self) -> int:
        return len(self._starts) - 1

    def _by_group(self, positions: IntArray) -> Iterator[tuple[int, IntArray]]:
        """Yield each row group that is needed, and which of the positions it holds."""
        home = np.searchsorted(self._starts[1:], positions, side="right")
        order = np.argsort(home, kind="stable")
        groups, firsts = np.unique(home[order], return_index=True)
        # Of no positions there is no group, and yet one piece, an empty one.
        yield from zip(groups.tolist(), np.split(order, firsts[1:]), strict=False)

    def _rows_of(self, group: int) -> IntArray:
        """Return the rows of a row group; they are kept, at 8 bytes each."""
        found = self._rows.get(group)
        if found is None:
            column = self._read(group, ["row"])["row"]
            with self._errors():
                if column.null_count or not len(column):
                    raise ValueError("it has rows without a number, or row groups without rows")
                found = column.to_numpy().astype(np.int64)
                if not is_ascending(found, -1):
                    raise ValueError("its rows do not ascend")
            self._rows[group] = found
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


def is_ascending(rows: npt.NDArray[np.int64], after: int) -> bool:
    """Tell whether rows, of which there is one at least, ascend and start after another."""
    return int(rows[0]) > after and bool((rows[1:] > rows[:-1]).all())


def _whole_numbers(positions: npt.ArrayLike) -> IntArray:
    numbers = np.asarray(positions)
    if numbers.size == 0:
        return np.zeros(numbers.shape, np.int64)
    if numbers.dtype.kind not in "iu":
        raise UserError(f"positions of type {numbers.dtype}; pass whole numbers")
    return numbers.astype(np.int64)


def _about(schema: pa.Schema) -> dict[str, object]:
    """Return what a row map says of itself.

    Raises:
        ValueError: It says nothing.
    """
    text = (schema.metadata or {}).get(layout.METADATA_KEY.encode())
    try:
        about = None if text is None else json.loads(text)
    except RecursionError:
        about = None
    if not isinstance(about, dict) or about.get("kind") != KIND:
        raise ValueError("it is no row map")
    return about


def _check_schema(path: Path, schema: pa.Schema) -> None:
    """Refuse a newer row map, and one whose columns are others.

    Raises:
        StoreError: It is newer.
        ValueError: It is no row map, or not as one is written.
    """
    check_version(path, _about(schema), FORMAT_VERSION)
    names = schema.names
    wanted = [*FIXED, "doc_id", *(name for name in PLACES if name in names)]
    if names != wanted:
        raise ValueError(f"its columns are {', '.join(names)}")
    for name, kind in zip(names, schema.types, strict=True):
        fits = pa.types.is_integer(kind) or (name == "doc_id" and (kind in (pa.string(), pa.large_string())))
        if not fits or kind != FIXED.get(name, kind):
            raise ValueError(f"its column {name!r} is {kind}")
