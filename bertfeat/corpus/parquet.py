"""Reader of Parquet: the needed columns, some rows of a row group at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import line_streams
from bertfeat.corpus.content import Content, Reader, Row, RowError
from bertfeat.corpus.tabular import LIST_SETTINGS, check_columns, content_of, needed_columns
from bertfeat.errors import InputError
from bertfeat.records import FileSlice, InputFile
from bertfeat.storage import ObjectPath, as_path

# A batch becomes Python objects in memory; a few hundred rows keep it small and are as fast as more.
_BATCH_ROWS = 512
# About the most bytes that the rows decoded at once take.
_BATCH_BYTES = 96_000_000
# In the name of a type that Arrow stores as another one.
_EXTENSION = "extension<"


class ParquetReader(Reader):
    """Reads .parquet; offsets are 0-based rows.

    Of a file's metadata only the numbers of rows and bytes are read: asking pyarrow for those of a column ends the
    process where the footer is damaged.
    """

    format = CorpusFormat.PARQUET
    endings = (".parquet",)
    has_columns = True
    settings = LIST_SETTINGS

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        with self._readable():
            self._parquet = _open(file.path)
            self.schema = self._parquet.schema_arrow
            metadata = self._parquet.metadata
            self.n_rows = metadata.num_rows
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            self._groups = [(group.num_rows, group.total_byte_size) for group in groups]
        self.columns = self.schema.names
        # Arrow finds no column by a name that occurs twice: `use` refuses it only if it is needed.
        self.select([name for name, count in Counter(self.columns).items() if count == 1])
        self._rest: tuple[int, Iterator[Row]] | None = None

    def select(self, names: Sequence[str]) -> None:
        """Read no other columns than these."""
        found = {name: find_field(self.schema, name) for name in names}
        self._paths = {name: path for name, (path, _) in found.items()}
        self.types: dict[str, Any] = {name: plain_type(kind) for name, (_, kind) in found.items()}

    def use(self, config: ExtractConfig) -> None:
        """Check that there are the columns that settings name, and read no others."""
        check_columns(self.file.path, nested_names(self.schema), config)
        self.select(needed_columns(config))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        # pyarrow decodes names and numbers of a damaged file without checks.
        except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
            reason = f"Parquet that cannot be read ({line_streams.first_line(error)}); write the file again"
            raise InputError(reason, path=self.file.path) from error

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError, pa.ArrowException):
            self._parquet.close()

    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield the rows from a row on; directly after the last yielded row, its row group is not decoded again."""
        position, rest = self._rest or (-1, iter(()))
        if position != start.offset:
            rest = self._rows_from(start.offset)
        self._rest = None
        for item in rest:
            self._rest = (item.offset + 1, rest)
            yield item

    def _rows_from(self, offset: int) -> Iterator[Row]:
        names = {".".join(path) for path in self._paths.values()}
        leaves = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
        for first, batch in self.batches(leaves, offset):
            columns = [_values(column_at(batch, path)) for path in self._paths.values()]
            for at, values in enumerate(zip(*columns, strict=True), first):
                yield self._row(at, dict(zip(self._paths, values, strict=True)))

    def _row(self, at: int, values: Mapping[str, Any]) -> Row:
        for name, value in values.items():
            if isinstance(value, _Unreadable):
                return Row(at, at + 1, None, RowError(f"column {name!r} holds {value.reason}"), value.raw)
        return Row(at, at + 1, None, values)

    def batches(self, names: Sequence[str], offset: int = 0) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield some columns from a row on, a few hundred rows at a time, with the number of the first row."""
        first = 0
        for number, (n_rows, n_bytes) in enumerate(self._groups):
            end = first + n_rows
            if end <= offset:
                first = end
                continue
            size = max(1, min(_BATCH_ROWS, _BATCH_BYTES * n_rows // max(n_bytes, 1)))
            with self._readable():
                # Without threads: sending a few rows to another thread takes longer than decoding them.
                for batch in self._parquet.iter_batches(size, row_groups=[number], columns=names, use_threads=False):
                    skip = min(max(offset - first, 0), batch.num_rows)
                    if skip < batch.num_rows:
                        yield first + skip, batch.slice(skip)
                    first += batch.num_rows
            if first != end:
                # Arrow skips pages of unknown types.
                reason = f"row group {number} ends {end - first:,} rows early; write the file again"
                raise InputError(reason, path=self.file.path)

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the content of a row."""
        return content_of(values, config)


def nested_names(fields: Any) -> list[str]:
    """Return the columns of a schema, or the fields of a struct, and the fields inside them: `content.body`."""
    names = [field.name for field in fields]
    structs = [field for field in fields if pa.types.is_struct(field.type)]
    inner = [f"{field.name}.{name}" for field in structs for name in nested_names(field.type)]
    # Fields of two columns with one name occur twice, so that `check_columns` refuses them.
    return names + [name for name in inner if name not in names]


def find_field(fields: Any, name: str) -> tuple[list[str], Any]:
    """Return the way to a column, or to a field inside one, and its type; see `bertfeat.corpus.tabular.nested`."""
    if name in [field.name for field in fields]:
        return [name], fields.field(name).type
    head, _, rest = name.partition(".")
    path, kind = find_field(fields.field(head).type, rest)
    return [head, *path], kind


def column_at(batch: pa.RecordBatch, path: Sequence[str]) -> Any:
    """Return a column, or a field inside one: null where what holds it is null."""
    column = batch.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


def _open(path: str) -> pq.ParquetFile:
    place = as_path(path)
    if isinstance(place, ObjectPath):
        return pq.ParquetFile(place.open(), pre_buffer=True)
    # As a stream, since Arrow would otherwise read whole columns of a row group.
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


class _Unreadable(NamedTuple):
    """A value that has no Python form: the reason, and its bytes if Arrow gives them."""

    reason: str
    raw: bytes | None


def _values(column: Any) -> list[Any]:
    """Return the Python values of a column, some of them `_Unreadable`."""
    if isinstance(column.type, pa.UuidType):
        return [value and str(value) for value in column.to_pylist()]
    if _EXTENSION in str(column.type):
        column = column.cast(plain_type(column.type))
    if getattr(column.type, "unit", None) == "ns":
        # Python's datetime has microseconds only; Arrow and polars take the integers back without loss.
        column = column.cast(pa.int64())
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raw = scalar.as_buffer().to_pybytes() if hasattr(scalar, "as_buffer") else None
        return _Unreadable("bytes that are not UTF-8; write it as text", raw)
    except (ValueError, OverflowError) as error:
        return _Unreadable(f"a value out of range ({error})", None)


def plain_type(kind: Any) -> Any:
    """Return the type of a column's values: without dictionary encoding, a UUID as text, extensions as stored."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.UuidType):
        return pa.string()
    return pa.bool_() if isinstance(kind, pa.Bool8Type) else _storage(kind)


def _storage(kind: Any) -> Any:
    """Return a type with that of its storage in the place of each extension type."""
    kinds = pa.types
    if _EXTENSION not in str(kind):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return _storage(kind.storage_type)
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_storage(field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(_storage(kind.key_type), _storage(kind.item_type))
    values = kind.value_field.with_type(_storage(kind.value_type))
    if kinds.is_fixed_size_list(kind):
        return pa.list_(values, kind.list_size)
    return pa.large_list(values) if kinds.is_large_list(kind) else pa.list_(values)


def is_text(kind: Any) -> bool:
    """Return whether a type is that of texts, or of a column without any value."""
    return kind in (pa.string(), pa.large_string(), pa.string_view(), pa.null())
