"""Writer of data frames as Parquet, batch by batch: the same bytes for one table, whichever library holds it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Reader
from bertfeat.corpus.formats import READER_OF
from bertfeat.corpus.inputs import FRAME, STDIN, format_of
from bertfeat.corpus.linestreams import first_line
from bertfeat.corpus.tabular import check_columns, needed_columns
from bertfeat.errors import InputError

# A row group ends before it has more rows, or more bytes of text, than these.
_GROUP_ROWS = 1 << 14
_GROUP_BYTES = 64_000_000
# The rows that are converted at once; a library may give a whole frame as one batch.
_SLICE_ROWS = 512
_TABLES = "a data frame (polars, pandas, pyarrow or DuckDB: anything with __arrow_c_stream__) or a datasets.Dataset"


class ArrowStream(Protocol):
    """A table that any Arrow library can read: of polars, pandas, pyarrow, DuckDB, ..."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table as a PyCapsule with an Arrow C stream."""
        ...


class ArrowDataset(Protocol):
    """A `datasets.Dataset`, with the rows and the order of its indices."""

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        ...

    def select_columns(self, column_names: Any) -> Any:
        """Return the dataset with some of its columns."""
        ...


Frame: TypeAlias = ArrowStream | ArrowDataset
Inputs: TypeAlias = str | Path | Sequence[str | Path] | Frame


def is_frame(inputs: object) -> TypeGuard[Frame]:
    """Return whether an input is a table in memory."""
    return hasattr(inputs, "__arrow_c_stream__") or _is_dataset(inputs)


def _is_dataset(inputs: object) -> TypeGuard[ArrowDataset]:
    return _is_from("datasets", "Dataset", inputs)


def _is_from(library: str, kind: str, value: object) -> bool:
    # There is no such value unless its library is loaded.
    return isinstance(value, getattr(sys.modules.get(library), kind, ()))


def paths_of(inputs: Inputs) -> list[str | Path]:
    """Return inputs as a list of paths.

    Raises:
        InputError: The list is empty, or holds something other than a path.
    """
    if not isinstance(inputs, str | Path | Iterable) or isinstance(inputs, Mapping):
        raise InputError(f"inputs is a {type(inputs).__name__}; pass paths, {_TABLES}")
    listed: list[Any] = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    if not listed:
        raise InputError("no input; name files, a glob, or - for standard input")
    for item in listed:
        if is_frame(item):
            raise InputError(f"inputs holds a {type(item).__name__}; pass one data frame, not in a list: join several")
        if not isinstance(item, str | Path):
            raise InputError(f"inputs holds a {type(item).__name__}, which is not a path; pass paths, {_TABLES}")
    return listed


def reader_of(inputs: Inputs, corpus_format: CorpusFormat) -> type[Reader]:
    """Return the reader of a corpus, by its first file; a data frame is read as the Parquet file of its rows."""
    if is_frame(inputs):
        return READER_OF[CorpusFormat.PARQUET]
    first = str(paths_of(inputs)[0])
    if first == STDIN and corpus_format is CorpusFormat.AUTO:
        return READER_OF[CorpusFormat.TXT]
    return READER_OF[format_of(first, corpus_format)[0]]


def write_frame(frame: Frame, folder: Path, config: ExtractConfig) -> Path:
    """Write the columns of a table that are read to a Parquet file of `folder`; the caller deletes it.

    The bytes follow from the values alone: not from the batches, the other columns or the order of the columns.

    Raises:
        InputError: A column is missing, has a type that Parquet lacks, or cannot be read; or the disk is full.
    """
    if config.format not in (CorpusFormat.AUTO, CorpusFormat.PARQUET):
        raise InputError(f"is a data frame, not {config.format}; leave out `format`", path=FRAME)
    path = folder / "frame.parquet"
    with _reading(frame):
        kinds, batches = _opened(frame, config)
    schema = pa.schema({name: _plain(kinds.field(name).type) for name in needed_columns(config)})
    # One value is written at a time, so that pages are cut by the values alone, and large texts share no page.
    settings = {"use_dictionary": False, "write_statistics": False, "write_batch_size": 1}
    n_rows = 0
    try:
        with pq.ParquetWriter(path, schema, compression="zstd", **settings) as writer:
            for group in _row_groups(_converted(frame, batches, schema)):
                table = pa.Table.from_batches(group, schema).combine_chunks()
                writer.write_table(table, row_group_size=_GROUP_ROWS)
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


def _opened(frame: Frame, config: ExtractConfig) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of a table and its batches, which can be read once."""
    if _is_dataset(frame):
        check_columns(FRAME, frame.column_names, config)
        chosen = frame.select_columns(list(needed_columns(config)))
        tables = chosen.with_format("arrow").iter(_SLICE_ROWS)
        return chosen.features.arrow_schema, (
            batch for table in tables for batch in table.combine_chunks().to_batches()
        )
    if _is_from("pandas", "DataFrame", frame):
        frame = _needed_of_pandas(frame, config)
    reader = pa.RecordBatchReader.from_stream(frame)
    check_columns(FRAME, reader.schema.names, config)
    slices = (batch.slice(at, _SLICE_ROWS) for batch in reader for at in range(0, batch.num_rows, _SLICE_ROWS))
    return reader.schema, slices


def _needed_of_pandas(frame: Any, config: ExtractConfig) -> Any:
    """Return the columns that are read, without the index: pandas converts all columns, also those that Arrow lacks."""
    names = [str(name) for name in frame.columns]
    check_columns(FRAME, names, config)
    return frame.loc[:, [name in needed_columns(config) for name in names]].reset_index(drop=True)


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


def _converted(frame: Frame, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with _reading(frame):
        for batch in batches:
            columns = []
            for field in schema:
                column = batch.column(field.name)
                if "dictionary<values=string_view" in str(column.type):
                    # The categories of polars, which Arrow does not convert.
                    column = pl.from_arrow(column).to_arrow(compat_level=pl.CompatLevel.oldest())
                columns.append(column.cast(field.type))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _reading(frame: Frame) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # The library of the frame may raise errors of its own.
        raise _unreadable(frame, error) from error


def _unreadable(frame: Frame, error: Exception) -> InputError:
    reason = f"the {type(frame).__name__} cannot be read as a table ({first_line(error)}); convert it to a data frame"
    return InputError(f"{reason} of types that Parquet has", path=FRAME)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Cut the rows of batches into row groups."""
    held: list[pa.RecordBatch] = []
    n_rows = n_bytes = 0
    for batch in batches:
        first = 0
        for row, size in enumerate(_row_bytes(batch)):
            if n_rows == _GROUP_ROWS or (n_rows and n_bytes + size > _GROUP_BYTES):
                yield [*held, batch.slice(first, row - first)]
                held, first, n_rows, n_bytes = [], row, 0, 0
            n_rows, n_bytes = n_rows + 1, n_bytes + size
        held.append(batch.slice(first))
    if held:
        yield held


def _row_bytes(batch: pa.RecordBatch) -> list[int]:
    """Return the bytes of text in each row of a batch; a value in a list counts as eight."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
        elif pa.types.is_list(column.type):
            sizes += 8 * pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    return list(sizes.tolist())
