"""Reader of Parquet: streams the needed columns, one row group after the other."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Content, Fault, Reader, Row, RowError, Start
from bertfeat.corpus.pagesizes import (
    DELTA_BYTE_ARRAY,
    DICTIONARIES,
    Chunk,
    DamagedParquet,
    Group,
    measure_pages,
    read_groups,
)
from bertfeat.corpus.tabular import check_columns, content_of, needed_columns
from bertfeat.errors import InputError
from bertfeat.records import InputFile
from bertfeat.storage import ObjectPath, as_path

# A batch becomes Python objects in memory; a few hundred rows keep it small and are as fast as more.
_BATCH_ROWS = 512
# The most that the rows decoded at once may hold; Arrow takes up to five times as much.
_BATCH_BYTES = 96_000_000
# The largest page that is decompressed; a row of `MAX_ROW_BYTES` may share its page with others.
MAX_PAGE_BYTES = 2 * linestreams.MAX_ROW_BYTES
# The most values in the lists of one row group: Arrow needs about twelve bytes for each, and one row may have all.
MAX_LIST_VALUES = 32_000_000
# In the name of a type that Arrow stores as another one.
_EXTENSION = "extension<"


class ParquetReader(Reader):
    """Reads .parquet; offsets are 0-based rows."""

    format = CorpusFormat.PARQUET
    endings = (".parquet",)
    has_columns = has_lists = is_compressed = True

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        with ExitStack() as on_error, self._readable():
            # Only a file whose footer this reader can read is given to Arrow.
            self._source = on_error.enter_context(_open_source(file.path))
            self._groups = read_groups(self._source)
            self._parquet = on_error.enter_context(_open(file.path))
            schema = self._parquet.schema_arrow
            check_columns(file.path, nested_names(schema), config)
            self._paths = {name: path_of(schema, name) for name in needed_columns(config)}
            self._columns = {path[0] for path in self._paths.values()}
            self._types = {name: _plain_type(type_at(schema, path)) for name, path in self._paths.items()}
            self._check_types()
            if leaves := self._repeating_leaves():
                # Words in lists stay in their dictionary until they are counted: a row may repeat one a million times.
                self._parquet.close()
                self._parquet = on_error.enter_context(_open(file.path, leaves))
            on_error.pop_all()
        self.kept_types = {name: self._types[name] for name in config.keep_columns}
        self._rest: tuple[int, Iterator[Row]] | None = None

    def _repeating_leaves(self) -> list[int]:
        """Return the columns of strings inside lists and structs, by number, that are encoded with a dictionary."""
        leaves = set()
        for group in self._groups:
            for place, chunk in enumerate(group.chunks):
                if not chunk.is_bytes or not _is_nested(chunk) or chunk.path[0] not in self._columns:
                    continue
                _, encodings = measure_pages(self._source, chunk)
                if DELTA_BYTE_ARRAY in encodings:
                    raise InputError(
                        f"column {chunk.path[0]!r} has lists in the encoding DELTA_BYTE_ARRAY, which are not read; "
                        "write them in another",
                        path=self.file.path,
                    )
                if encodings & DICTIONARIES:
                    leaves.add(place)
        return sorted(leaves)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        # pyarrow decodes names and numbers of a damaged footer without checks.
        except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
            reason = f"Parquet that cannot be read ({linestreams.first_line(error)}); write the file again"
            raise InputError(reason, path=self.file.path) from error

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError, pa.ArrowException):
            self._parquet.close()
            self._source.close()

    def _check_types(self) -> None:
        config = self.config
        text = (_is_text, "text; pass another `text_column`")
        words = (_is_list, "a list of words; drop `is_split_into_words` for texts")
        for column, (is_right, wanted) in (
            (config.text_column, words if config.is_split_into_words else text),
            (config.text_pair_column, (_is_text, "text; pass another `text_pair_column`")),
            (config.label_column, (_is_list, "a list with a label for each word")),
            (config.id_column, (_is_name, "strings or integers; pass another `id_column`")),
            (config.document_column, (_is_name, "strings or integers; pass another `document_column`")),
        ):
            if column and not is_right(self._types[column]):
                raise InputError(f"column {column!r} is {self._types[column]}, not {wanted}", path=self.file.path)

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield the rows from a row on; directly after the last yielded row, its row group is not decoded again."""
        position, rest = self._rest or (-1, iter(()))
        if position != start.offset:
            rest = self._rows_from(start.offset)
        self._rest = None
        for item in rest:
            self._rest = (item.offset + 1, rest)
            yield item

    def _rows_from(self, offset: int) -> Iterator[Row]:
        first = 0
        for number, group in enumerate(self._groups):
            if first + group.n_rows > offset:
                yield from self._rows_of_group(number, first, max(offset - first, 0))
            first += group.n_rows

    def _rows_of_group(self, number: int, first: int, skip: int) -> Iterator[Row]:
        """Yield the rows of a row group, whose first row is `first`, without its first `skip` rows."""
        end = first + self._groups[number].n_rows
        with self._readable():
            n_rows = batch_rows(self._source, self._groups, number, self._columns, self.file.path)
            # Without threads: sending a few rows to another thread takes longer than decoding them.
            for batch in self._parquet.iter_batches(
                n_rows, row_groups=[number], columns=self._leaves(), use_threads=False
            ):
                if skip < batch.num_rows:
                    yield from self._rows_of_batch(batch.slice(skip), first + skip)
                first += batch.num_rows
                skip = max(skip - batch.num_rows, 0)
            if first != end:
                # Arrow skips pages of unknown types.
                raise InputError(
                    f"row group {number} ends {end - first:,} rows early; write the file again", path=self.file.path
                )

    def _leaves(self) -> list[str]:
        """Return the columns that Arrow decodes; of a struct, only the fields that are needed."""
        names = {".".join(path) for path in self._paths.values()}
        return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]

    def _rows_of_batch(self, batch: Any, first: int) -> Iterator[Row]:
        reason = _excess(batch)
        if reason is not None and batch.num_rows == 1:
            yield Row(first, first + 1, None, Fault(reason, None))
            return
        if reason is not None:
            for place in range(batch.num_rows):
                yield from self._rows_of_batch(batch.slice(place, 1), first + place)
            return
        columns = [_values(column_at(batch, path)) for path in self._paths.values()]
        for place, values in enumerate(zip(*columns, strict=True)):
            yield Row(first + place, first + place + 1, None, self._content(values))

    def _content(self, values: tuple[Any, ...]) -> Content | Fault:
        for name, value in zip(self._paths, values, strict=True):
            if isinstance(value, _Unreadable):
                return Fault(f"column {name!r} holds {value.reason}", value.raw)
        try:
            return content_of(dict(zip(self._paths, values, strict=True)), self.config)
        except RowError as error:
            return Fault(str(error), None)


def nested_names(fields: Any) -> list[str]:
    """Return the columns of a schema, or the fields of a struct, and the fields inside them: `content.body`."""
    names = [field.name for field in fields]
    for field in fields:
        if pa.types.is_struct(field.type):
            inner = [f"{field.name}.{name}" for name in nested_names(field.type)]
            names += [name for name in inner if name not in names]
    return names


def path_of(fields: Any, name: str) -> list[str]:
    """Return the way to a column, or to a field inside one; see `bertfeat.corpus.tabular.nested`."""
    if name in [field.name for field in fields]:
        return [name]
    head, _, rest = name.partition(".")
    return [head, *path_of(fields.field(head).type, rest)]


def type_at(schema: Any, path: Sequence[str]) -> Any:
    """Return the type of a column, or of a field inside one."""
    kind = schema
    for name in path:
        kind = kind.field(name).type
    return kind


def column_at(batch: pa.RecordBatch, path: Sequence[str]) -> Any:
    """Return a column, or a field inside one: null where what holds it is null."""
    column = batch.column(path[0])
    return pc.struct_field(column, path[1:]) if path[1:] else column


def batch_rows(
    source: BinaryIO, groups: Sequence[Group], number: int, columns: Container[str], path: str, *, width: int = 0
) -> int:
    """Return how many rows of a row group fit in memory when some columns of it are decoded at once.

    Arrow decompresses page by page. A value is at most as large as the largest page of its column, but a small file may
    repeat it in many rows. The strings of lists are not counted. Lists may have up to `width` values per row.

    Raises:
        InputError: A page or a column of lists is too large.
    """
    row_bytes = 1
    for chunk in groups[number].chunks:
        if chunk.path[:1] and chunk.path[0] in columns:
            n_bytes, _ = measure_pages(source, chunk)
            most = max(MAX_LIST_VALUES, groups[number].n_rows * width)
            _check_chunk(groups[number], number, chunk, n_bytes, most, path)
            if chunk.is_bytes and not _is_nested(chunk):
                row_bytes += n_bytes
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))


def _is_nested(chunk: Chunk) -> bool:
    return len(chunk.path) > 1


def _check_chunk(group: Group, number: int, chunk: Chunk, n_bytes: int, most: int, path: str) -> None:
    name = ".".join(chunk.path)
    if not _is_nested(chunk) and chunk.n_values != group.n_rows:
        raise DamagedParquet(f"column {name!r} of row group {number} does not have one value per row")
    if n_bytes > MAX_PAGE_BYTES:
        raise InputError(
            f"row group {number} has a page of {n_bytes:,} bytes in column {name!r}, {MAX_PAGE_BYTES:,} are the "
            "most that are read; write the file with smaller row groups",
            path=path,
        )
    if _is_nested(chunk) and chunk.n_values > most:
        raise InputError(
            f"row group {number} has {chunk.n_values:,} values in the lists of column {name!r}, "
            f"{most:,} are the most that are read; write the file with smaller row groups",
            path=path,
        )


def _open_source(path: str) -> BinaryIO:
    place = as_path(path)
    return cast("BinaryIO", place.open() if isinstance(place, ObjectPath) else pa.OSFile(path))


def _open(path: str, dictionaries: Sequence[int] | None = None) -> pq.ParquetFile:
    place = as_path(path)
    if isinstance(place, ObjectPath):
        return pq.ParquetFile(place.open(), pre_buffer=True, read_dictionary=dictionaries)
    # As a stream, since Arrow would otherwise read whole columns of a row group.
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, read_dictionary=dictionaries)


def _excess(batch: Any) -> str | None:
    """Return the reason if a batch of rows is too large to become Python objects."""
    sizes = [_size(column) for column in batch.columns]
    n_bytes = sum(size for size, _ in sizes)
    if n_bytes > linestreams.MAX_ROW_BYTES:
        return linestreams.too_long(n_bytes)
    n_values = sum(count for _, count in sizes)
    return linestreams.too_many("values") if n_values > linestreams.MAX_ROW_VALUES else None


def _size(values: Any) -> tuple[int, int]:
    """Return the bytes of values when each has a copy of its own, and the number of values inside them."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _size(values.storage)
    if pa.types.is_dictionary(kind):
        lengths = pc.take(_lengths(values.dictionary), values.indices)
        return pc.sum(lengths).as_py() or 0, len(values)
    if pa.types.is_map(kind):
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        parts = [values.keys.slice(first, last - first), values.items.slice(first, last - first)]
    elif pa.types.is_struct(kind):
        parts = values.flatten()
    elif _is_list(kind) and not pa.types.is_null(kind):
        parts = [values.flatten()]
    else:
        return pc.sum(_lengths(values)).as_py() or 0, len(values)
    sizes = [_size(part) for part in parts]
    return sum(n_bytes for n_bytes, _ in sizes), sum(n_values for _, n_values in sizes)


def _lengths(values: Any) -> Any:
    """Return the bytes of each value."""
    kind = values.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        values = values.cast(pa.large_binary())
    elif not (_is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) or pa.types.is_null(kind):
        return pa.repeat(values.nbytes // max(len(values), 1), len(values))
    return pc.binary_length(values)


class _Unreadable:
    """A value that has no Python form: the reason, and its bytes if Arrow gives them."""

    def __init__(self, scalar: Any, error: Exception) -> None:
        buffer = scalar.as_buffer() if hasattr(scalar, "as_buffer") else None
        self.raw: bytes | None = None if buffer is None else buffer.to_pybytes()
        is_text = isinstance(error, UnicodeDecodeError)
        self.reason = "bytes that are not UTF-8; write it as text" if is_text else f"a value out of range ({error})"


def _values(column: Any) -> list[Any]:
    """Return the Python values of a column, some of them `_Unreadable`."""
    if isinstance(column.type, pa.UuidType):
        return [value and str(value) for value in column.to_pylist()]
    if _EXTENSION in str(column.type):
        column = column.cast(_plain_type(column.type))
    if _counts_nanoseconds(column.type):
        # Python's datetime has microseconds only; Arrow and polars take the integers back without loss.
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
    """Return the type of a column's values: without dictionary encoding, a UUID as text, extensions as stored."""
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
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


def _is_text(kind: Any) -> bool:
    # A column without any value has the null type: each of its rows is bad.
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)
    return any(is_kind(kind) for is_kind in texts)


def _is_name(kind: Any) -> bool:
    return _is_text(kind) or bool(pa.types.is_integer(kind))


def _is_list(kind: Any) -> bool:
    kinds = pa.types
    lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(is_kind(kind) for is_kind in (*lists, kinds.is_null))
