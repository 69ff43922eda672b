"""Writer of data frames as Parquet, batch by batch: the same bytes for one table, whichever library holds it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Reader
from bertfeat.corpus.formats import READER_OF
from bertfeat.corpus.inputs import FRAME, STDIN, format_of, may_be_file
from bertfeat.corpus.linestreams import first_line
from bertfeat.corpus.parquet import column_at, find_field, nested_names
from bertfeat.corpus.tabular import check_columns, needed_columns
from bertfeat.errors import InputError

# The rows of a row group, and those that are converted at once: a library may give a whole frame as one batch.
_GROUP_ROWS = 4096
_SLICE_ROWS = 512
_TABLES = "a data frame (polars, pandas, pyarrow or DuckDB: anything with __arrow_c_stream__) or a datasets.Dataset"
# Of DuckDB, the types whose values reach Arrow as bytes of its own, or changed, or that Parquet lacks.
_DUCKDB_ONLY = frozenset({"bit", "bignum", "interval", "time with time zone", "type", "uhugeint", "union", "variant"})
_DUCKDB_NESTED = frozenset({"array", "list", "map", "struct", "tuple"})
_SPACE, _ENDING = re.compile(r"\s"), re.compile(r"\.\w{1,8}$")


class ArrowStream(Protocol):
    """A table that any Arrow library can read: of polars, pandas, pyarrow, DuckDB, ..."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table as a PyCapsule with an Arrow C stream."""
        ...


# A `datasets.Dataset` is one too, with the rows and the order of its indices.
Frame: TypeAlias = ArrowStream | pl.LazyFrame
# What holds texts in memory besides a frame: a column (of polars, pandas or pyarrow), a dict of columns, rows or texts.
Held: TypeAlias = Mapping[str, Any] | Iterable[Mapping[str, Any]] | Iterable[str]
Inputs: TypeAlias = str | Path | Iterable[str | Path] | Frame | Held


def is_frame(inputs: object) -> TypeGuard[Frame]:
    """Return whether an input is a table in memory."""
    return hasattr(inputs, "__arrow_c_stream__") or isinstance(inputs, pl.LazyFrame) or _is_dataset(inputs)


def _is_dataset(inputs: object) -> bool:
    return _is_from("datasets", "Dataset", inputs)


def _is_from(library: str, kind: str, value: object) -> bool:
    # There is no such value unless its library is loaded.
    return isinstance(value, getattr(sys.modules.get(library), kind, ()))


class Paths(tuple[str | Path, ...]):
    """Inputs that are paths and never texts, such as those of a command line."""


def resolve_kind(inputs: Inputs, config: ExtractConfig) -> Frame | Paths:
    """Return inputs as one table or as paths; texts without columns become the column of texts.

    Raises:
        InputError: Inputs are empty, or are neither paths nor texts.
    """
    if isinstance(inputs, Paths):
        return inputs
    if isinstance(inputs, str | Path):
        return Paths([inputs])
    kind = type(inputs).__name__
    if kind in ("DatasetDict", "IterableDataset", "IterableDatasetDict"):
        raise InputError(f"inputs is a {kind}; pass one split that is loaded, a datasets.Dataset: ds['train']")
    if isinstance(inputs, pa.Array | pa.ChunkedArray):
        return _table({config.text_column: inputs})
    if isinstance(inputs, Mapping):
        return _table(inputs)
    if is_frame(inputs):
        is_column = isinstance(inputs, pl.Series) or _is_from("pandas", "Series", inputs)
        return cast("Any", inputs).to_frame(config.text_column) if is_column else inputs
    if not isinstance(inputs, Iterable):
        raise InputError(f"inputs is a {kind}; pass paths, {_TABLES}")
    return _kind_of_items([*inputs], config)


def _kind_of_items(items: list[Any], config: ExtractConfig) -> Frame | Paths:
    """Return rows or texts as a table, and paths as they are."""
    if not items:
        raise InputError("no input; name files, a glob, or - for standard input")
    if all(isinstance(item, Mapping) for item in items):
        names = dict.fromkeys(name for item in items for name in item)
        return _table({name: [item.get(name) for item in items] for name in names})
    for item in items:
        if is_frame(item):
            raise InputError(f"inputs holds a {type(item).__name__}; pass one data frame, not in a list: join several")
        if not isinstance(item, str | Path):
            raise InputError(f"inputs holds a {type(item).__name__}, which is not a path; pass paths, {_TABLES}")
    if config.format is CorpusFormat.AUTO and any(map(_is_no_file, items)) and not any(map(may_be_file, items)):
        return _table({config.text_column: items})
    return Paths(items)


def _table(columns: Mapping[str, Any]) -> Frame:
    for name, values in columns.items():
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise InputError(f"column {name!r} is a {type(values).__name__}; pass a list of values", path=FRAME)
    with _reading(columns):
        table: ArrowStream = pa.table({str(name): values for name, values in columns.items()})
        return table


def _is_no_file(item: str | Path) -> bool:
    """Return whether a string has a space, and neither a slash nor an ending, which every input file has."""
    return isinstance(item, str) and bool(_SPACE.search(item)) and "/" not in item and not _ENDING.search(item)


def reader_of(inputs: Frame | Paths, corpus_format: CorpusFormat) -> type[Reader]:
    """Return the reader of a corpus, by its first file; a data frame is read as the Parquet file of its rows."""
    if not isinstance(inputs, Paths):
        return READER_OF[CorpusFormat.PARQUET]
    first = str(inputs[0])
    if first == STDIN and corpus_format is CorpusFormat.AUTO:
        return READER_OF[CorpusFormat.TXT]
    return READER_OF[format_of(first, corpus_format)[0]]


def write_frame(frame: Frame, folder: Path, config: ExtractConfig) -> Path:
    """Write the columns of a table that are read to a Parquet file of `folder`; the caller deletes it.

    The bytes follow from the values, not from the batches, the other columns or the order of the columns.

    Raises:
        InputError: A column is missing, has a type that Parquet lacks, or cannot be read; or the disk is full.
    """
    if config.format not in (CorpusFormat.AUTO, CorpusFormat.PARQUET):
        raise InputError(f"is a data frame, not {config.format}; leave out `format`", path=FRAME)
    path = folder / "frame.parquet"
    with _reading(frame):
        kinds, batches = _opened(frame, config)
    found = {name: find_field(kinds, name) for name in needed_columns(config)}
    schema = pa.schema({name: _plain(kind) for name, (_, kind) in found.items()})
    for field in schema:
        _check_type(field)
    n_rows = 0
    try:
        with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
            for table in _tables(_converted(frame, batches, schema, [path for path, _ in found.values()]), schema):
                writer.write_table(table)
                n_rows += table.num_rows
    except pa.ArrowException as error:
        raise _unreadable(frame, error) from error
    except OSError as error:
        raise InputError(
            f"a data frame cannot be copied here ({first_line(error)}); check the disk", path=str(folder)
        ) from error
    if not n_rows and isinstance(frame, pa.RecordBatchReader):
        raise InputError("has no rows left: a RecordBatchReader can be read once; pass a new one", path=FRAME)
    return path


def parquet_frame(path: str) -> Frame:
    """Return a Parquet file as a frame.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        file = pq.ParquetFile(path)
        frame: ArrowStream = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(_SLICE_ROWS))
        return frame
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"cannot be read as Parquet ({first_line(error)}); check the file", path=path) from error


def _opened(frame: Any, config: ExtractConfig) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of a table and its batches, which can be read once."""
    if _is_dataset(frame):
        if frame.format["type"] == "custom":
            raise InputError("has a transform, which is not applied to its rows; pass `dataset.map(f)`", path=FRAME)
        chosen = frame.select_columns(_held_columns(frame.column_names, config))
        schema = chosen.features.arrow_schema
        tables = chosen.with_format("arrow").iter(_SLICE_ROWS)
        batches = (batch for table in tables for batch in table.combine_chunks().to_batches())
    else:
        reader = pa.RecordBatchReader.from_stream(_needed(frame, config))
        schema = reader.schema
        batches = (batch.slice(at, _SLICE_ROWS) for batch in reader for at in range(0, batch.num_rows, _SLICE_ROWS))
    check_columns(FRAME, nested_names(schema), config)
    return schema, batches


def _needed(frame: Any, config: ExtractConfig) -> Any:
    """Return the columns that are read where a library would convert all, also those that Arrow lacks.

    Raises:
        InputError: A column is missing, or Arrow lacks its type.
    """
    is_polars, is_pandas = isinstance(frame, pl.DataFrame | pl.LazyFrame), _is_from("pandas", "DataFrame", frame)
    if is_polars:
        schema = frame.lazy().collect_schema()
        names, kinds = schema.names(), schema.dtypes()
    elif is_pandas:
        names, kinds = [str(name) for name in frame.columns], frame.dtypes
    elif _is_from("duckdb", "DuckDBPyRelation", frame):
        names, kinds = frame.columns, frame.types
    else:
        return frame
    held = _held_columns(names, config)
    for name, kind in zip(names, kinds, strict=True):
        if name in held and (remedy := _remedy(name, kind)):
            raise _unread(name, kind, remedy)
    if is_polars:
        return frame.lazy().select(held).collect()
    # Without the index.
    return frame.loc[:, [name in held for name in names]].reset_index(drop=True) if is_pandas else frame


def _remedy(name: str, kind: Any) -> str | None:
    """Return what to do about a column whose values do not reach Arrow, or None if they do."""
    if _is_from("pandas", "PeriodDtype", kind):
        return "make it text with `astype(str)`"
    if isinstance(kind, pl.Object):
        # Arrow gets the addresses of Python's objects.
        return "make it text with `map_elements(str, return_dtype=pl.String)`"
    if isinstance(kind, pl.DataType) and "Int128" in str(kind):
        return "cast it to `pl.Int64` or `pl.String`"
    if type(kind).__name__ == "DuckDBPyType" and _is_only_of_duckdb(kind):
        return f"select `cast({name} as varchar)`"
    return None


def _held_columns(names: Sequence[str], config: ExtractConfig) -> list[str]:
    """Return the columns of a table that are read, each once: for a field, the column that holds it.

    Raises:
        InputError: A column is missing or appears twice.
    """
    holders = {name: name if name in names else name.partition(".")[0] for name in needed_columns(config)}
    check_columns(FRAME, [*names, *(name for name in holders if name not in names and holders[name] in names)], config)
    return list(dict.fromkeys(holders.values()))


def _is_only_of_duckdb(kind: Any) -> bool:
    inner = [child for _, child in kind.children] if kind.id in _DUCKDB_NESTED else []
    return kind.id in _DUCKDB_ONLY or any(_is_only_of_duckdb(child) for child in inner if isinstance(child, type(kind)))


def _check_type(field: Any) -> None:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowException:
        raise _unread(field.name, field.type, "cast it, for example to a string") from None


def _unread(name: str, kind: object, remedy: str) -> InputError:
    return InputError(f"column {name!r} is {kind}, which is not read; {remedy}", path=FRAME)


def _plain(kind: Any) -> Any:
    """Return the type that a column is written with: one for all kinds of strings, of bytes and of lists."""
    kinds = pa.types
    if kinds.is_dictionary(kind):
        return _plain(kind.value_type)
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    if kinds.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)), kind.list_size)
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)))
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    return kind


def _converted(
    frame: Frame, batches: Iterator[pa.RecordBatch], schema: pa.Schema, paths: Sequence[Sequence[str]]
) -> Iterator[pa.RecordBatch]:
    with _reading(frame):
        for batch in batches:
            columns = []
            for field, path in zip(schema, paths, strict=True):
                column = column_at(batch, path)
                if "dictionary<values=string_view" in str(column.type):
                    # The categories of polars, which Arrow does not convert.
                    column = pl.from_arrow(column).to_arrow(compat_level=pl.CompatLevel.oldest())
                columns.append(column.cast(field.type))
                if pa.types.is_decimal(field.type):
                    # DuckDB's HUGEINT may have more digits than its type in Arrow.
                    columns[-1].validate(full=True)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _reading(frame: object) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # The library of the frame may raise errors of its own.
        raise _unreadable(frame, error) from error


def _unreadable(frame: object, error: Exception) -> InputError:
    reason = f"the {type(frame).__name__} cannot be read as a table ({first_line(error)}); convert it to a data frame"
    return InputError(f"{reason} of types that Parquet has", path=FRAME)


def _tables(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of batches in tables of `_GROUP_ROWS` rows, and the rest."""
    held: list[pa.RecordBatch] = []
    n_rows = 0
    for batch in batches:
        held.append(batch)
        n_rows += batch.num_rows
        while n_rows >= _GROUP_ROWS:
            table = pa.Table.from_batches(held, schema)
            yield table.slice(0, _GROUP_ROWS).combine_chunks()
            held, n_rows = table.slice(_GROUP_ROWS).to_batches(), n_rows - _GROUP_ROWS
    if n_rows:
        yield pa.Table.from_batches(held, schema).combine_chunks()
