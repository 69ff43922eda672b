"""Parquet, streamed row group by row group over only the columns needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.config import ExtractConfig
from bertfeat.corpus import streams
from bertfeat.corpus.rows import Content, Fault, Reader, Row, RowError, Start, check_columns, content_of, needed_columns
from bertfeat.errors import InputError
from bertfeat.records import InputFile
from bertfeat.storage import ObjectPath, as_path

# A batch lives in memory as Python objects; a few hundred rows keep that small and cost no speed.
BATCH_ROWS = 512


class ParquetReader(Reader):
    """Reads .parquet; offsets are 0-based rows."""

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        self._columns = needed_columns(config)
        with self._readable():
            self._parquet = _open(file.path)
            schema = self._parquet.schema_arrow
        try:
            check_columns(file.path, schema.names, config)
            self._check_types({name: _plain_type(schema.field(name).type) for name in self._columns})
            self._check_row_groups()
        except InputError:
            self.close()
            raise
        self.kept_types = {name: _plain_type(schema.field(name).type) for name in config.keep_columns}
        self._rest: tuple[int, Iterator[Row]] | None = None

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise InputError(
                f"Parquet that cannot be read ({reason}); write the file again", path=self.file.path
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._parquet.close()

    def _check_types(self, types: Mapping[str, Any]) -> None:
        config = self.config
        if config.is_split_into_words:
            self._expect(config.text_column, types, _is_list, "a list of words; drop --is-split-into-words for texts")
        else:
            self._expect(config.text_column, types, _is_text, "text; pass another --text-column")
        if config.text_pair_column:
            self._expect(config.text_pair_column, types, _is_text, "text; pass another --text-pair-column")
        if config.label_column:
            self._expect(config.label_column, types, _is_list, "a list with a label for each word")
        for column, flag in ((config.id_column, "--id-column"), (config.document_column, "--document-column")):
            if column:
                self._expect(column, types, _is_name, f"strings or integers; pass another {flag}")

    def _expect(self, column: str, types: Mapping[str, Any], check: Any, wanted: str) -> None:
        if not check(types[column]):
            raise InputError(f"column {column!r} is {types[column]}, not {wanted}", path=self.file.path)

    def _check_row_groups(self) -> None:
        """Refuse row groups that would not fit in memory: their columns are decoded as a whole."""
        metadata = self._parquet.metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            chunks = (group.column(place) for place in range(group.num_columns))
            n_bytes = sum(chunk.total_uncompressed_size for chunk in chunks if self._is_needed(chunk.path_in_schema))
            if n_bytes > streams.MAX_ROW_BYTES:
                raise InputError(
                    f"row group {number} holds {n_bytes:,} bytes in the columns needed, {streams.MAX_ROW_BYTES:,} are "
                    "the most; write the file with smaller row groups",
                    path=self.file.path,
                )

    def _is_needed(self, path: str) -> bool:
        return any(path == name or path.startswith(name + ".") for name in self._columns)

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield the rows from a row on.

        A reader that is asked for the row after the last one it gave goes on within its row group instead of decoding
        the group again.
        """
        position, rest = self._rest or (-1, iter(()))
        if position != start.offset:
            rest = self._rows_from(start.offset)
        self._rest = None
        for item in rest:
            self._rest = (item.offset + 1, rest)
            yield item

    def _rows_from(self, offset: int) -> Iterator[Row]:
        first = 0
        metadata = self._parquet.metadata
        for number in range(metadata.num_row_groups):
            n_rows = metadata.row_group(number).num_rows
            if first + n_rows > offset:
                yield from self._rows_of_group(number, first, max(offset - first, 0))
            first += n_rows

    def _rows_of_group(self, number: int, first: int, skip: int) -> Iterator[Row]:
        """Yield the rows of a row group, whose first row is `first`, without its first `skip` rows."""
        with self._readable():
            batches = self._parquet.iter_batches(BATCH_ROWS, row_groups=[number], columns=list(self._columns))
            for batch in batches:
                if skip < batch.num_rows:
                    yield from self._rows_of_batch(batch.slice(skip), first + skip)
                first += batch.num_rows
                skip = max(skip - batch.num_rows, 0)

    def _rows_of_batch(self, batch: Any, first: int) -> Iterator[Row]:
        columns = [_values(batch.column(name)) for name in self._columns]
        for place, values in enumerate(zip(*columns, strict=True)):
            yield Row(first + place, first + place + 1, None, self._content(values))

    def _content(self, values: tuple[Any, ...]) -> Content | Fault:
        for name, value in zip(self._columns, values, strict=True):
            if isinstance(value, _Unreadable):
                return Fault(f"column {name!r} holds {value.reason}", value.raw)
        try:
            return content_of(dict(zip(self._columns, values, strict=True)), self.config)
        except RowError as error:
            return Fault(str(error), None)


def _open(path: str) -> pq.ParquetFile:
    place = as_path(path)
    return pq.ParquetFile(place.open(), pre_buffer=True) if isinstance(place, ObjectPath) else pq.ParquetFile(path)


class _Unreadable:
    """A value that has no Python form: why, and its bytes where Arrow hands them out."""

    def __init__(self, scalar: Any, error: Exception) -> None:
        buffer = scalar.as_buffer() if hasattr(scalar, "as_buffer") else None
        self.raw: bytes | None = None if buffer is None else buffer.to_pybytes()
        is_text = isinstance(error, UnicodeDecodeError)
        self.reason = "bytes that are no UTF-8; write it as text" if is_text else f"a value out of range ({error})"


def _values(column: Any) -> list[Any]:
    """Return the Python values of a column, some of them `_Unreadable`."""
    if _counts_nanoseconds(column.type):
        # Python's datetime ends at microseconds; Arrow and polars take the integers back without loss.
        column = column.cast(pa.int64())
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as error:
        return _Unreadable(scalar, error)


def _counts_nanoseconds(kind: Any) -> bool:
    is_temporal = pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind)
    return bool(is_temporal and kind.unit == "ns")


def _plain_type(kind: Any) -> Any:
    """Return the type of a column's values, without dictionary encoding."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: Any) -> bool:
    # A column without any value has the null type: its rows are bad, one by one.
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(is_kind(kind) for is_kind in texts)


def _is_name(kind: Any) -> bool:
    return _is_text(kind) or bool(pa.types.is_integer(kind))


def _is_list(kind: Any) -> bool:
    kinds = pa.types
    lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(is_kind(kind) for is_kind in (*lists, kinds.is_null))
