"""Writer of data frames as Parquet, batch by batch: the same bytes for one table, whichever library holds it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Reader
from bertfeat.corpus.corpus import FRAME, STDIN, format_of, local_file, may_be_file
from bertfeat.corpus.formats import reader_named
from bertfeat.corpus.line_streams import first_line
from bertfeat.corpus.parquet import ParquetReader, column_at, find_field, nested_names
from bertfeat.corpus.tabular import check_columns, needed_columns
from bertfeat.display import human_bytes
from bertfeat.errors import InputError

# The rows of a row group, and those that are converted at once.
_GROUP_ROWS = 4096
# The most that is taken from an iterator, which may never end, without a limit of its own.
MAX_ITERATED_ROWS = 20_000_000
MAX_ITERATED_BYTES = 20_000_000_000
_TABLES = "a data frame (polars, pandas, pyarrow or DuckDB: anything with __arrow_c_stream__) or a datasets.Dataset"
# Of each library, the types whose values reach Arrow changed, as bytes of its own or not at all, and what to do.
_LOST = {
    "polars": (r"Object|Int128", "make it text with `map_elements(str, return_dtype=pl.String)`"),
    "pandas": (r"^period", "make it text with `astype(str)`"),
    "duckdb": (
        # Not the names of fields, which a space follows.
        r"\b(BIT|BIGNUM|INTERVAL|TIME WITH TIME ZONE|TYPE|UHUGEINT|UNION|VARIANT)(?! )",
        "select `cast({name} as varchar)`",
    ),
}
_QUOTED = re.compile("""\"[^"]*"|'[^']*'""")
# A slash, an ending, or a wildcard in a string without whitespace.
_LIKE_A_PATH = re.compile(r"/|\.\w{1,8}\Z|\A\S*[*?[]\S*\Z")
_BOTH_WAYS = "pass texts as pl.DataFrame({'text': [...]}) or {'text': [...]}, and paths as Path(...)"


class ArrowStream(Protocol):
    """A table that any Arrow library can read: of polars, pandas, pyarrow, DuckDB, ..."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table as a PyCapsule with an Arrow C stream."""


# A `datasets.Dataset` is one too, with the rows and the order of its indices; an `IterableDataset` is an iterator.
Frame: TypeAlias = ArrowStream | pl.LazyFrame
# Paths, a frame, a column (of polars, pandas or pyarrow), a dict of columns, rows, or texts.
Inputs: TypeAlias = str | Path | Iterable[str | Path] | Frame | Mapping[str, Any] | Iterable[Mapping[str, Any]]


class Paths(tuple[str | Path, ...]):
    """Inputs that are paths and never texts, such as those of a command line."""


def _is_from(library: str, kind: str, value: object) -> bool:
    # There is no such value unless its library is loaded.
    return isinstance(value, getattr(sys.modules.get(library), kind, ()))


def resolve_kind(inputs: Inputs, config: ExtractConfig) -> Frame | Paths:
    """Return inputs as one table or as paths; texts without columns become the column of texts."""
    if isinstance(inputs, Paths):
        return inputs
    if isinstance(inputs, str | Path):
        if config.format is CorpusFormat.AUTO and not may_be_file(inputs):
            raise InputError(f"no such file (read from {Path.cwd()}); {_BOTH_WAYS}", path=f"{inputs:.200}")
        return Paths([inputs])
    kind = type(inputs).__name__
    if kind in ("DatasetDict", "IterableDatasetDict"):
        raise InputError(f"inputs is a {kind}; pass one split: ds['train']")
    if isinstance(inputs, pa.Array | pa.ChunkedArray):
        return cast("Frame", _table({config.text_column: inputs}))
    if isinstance(inputs, Mapping):
        return cast("Frame", _table(inputs))
    if isinstance(inputs, pl.Series) or _is_from("pandas", "Series", inputs):
        return cast("Frame", cast("Any", inputs).to_frame(config.text_column))
    if (
        hasattr(inputs, "__arrow_c_stream__")
        or isinstance(inputs, pl.LazyFrame)
        or _is_from("datasets", "Dataset", inputs)
    ):
        return cast("Frame", inputs)
    if not isinstance(inputs, Iterable):
        raise InputError(f"inputs is a {kind}; pass paths, {_TABLES}")
    return _kind_of_items(inputs, config)


def hold_texts(items: Sequence[str | Path]) -> bool:
    """Return whether strings are texts: none may be a file, and at least one does not look like a path.

    They are paths if all may be files; other lists are refused.
    """
    may_be = [may_be_file(item) for item in items]
    if all(may_be):
        return False
    unclear = str(items[may_be.index(False)])
    if any(may_be):
        file = items[may_be.index(True)]
        raise InputError(f"{unclear!r:.60} names no file, and {str(file)!r:.60} is or may be one; {_BOTH_WAYS}")
    if all(_LIKE_A_PATH.search(str(item)) for item in items):
        raise InputError(f"no such file (read from {Path.cwd()}); {_BOTH_WAYS}", path=f"{unclear:.200}")
    return True


def _kind_of_items(inputs: Any, config: ExtractConfig) -> Frame | Paths:
    """Return rows or texts as a table, and paths as they are. An iterator of rows or texts is read with the table."""
    if _is_from("datasets", "IterableDataset", inputs):
        inputs = inputs.with_format(None)
        if names := inputs.column_names:
            inputs = inputs.select_columns(_held_columns("datasets", names, (), config))
    rest, is_held = iter(inputs), isinstance(inputs, Sized)
    head = [*(rest if is_held else islice(rest, _GROUP_ROWS))]
    if not head:
        raise InputError("no input; name files, a glob, or - for standard input")
    are_rows = isinstance(head[0], Mapping)
    if not are_rows and not (config.format is CorpusFormat.AUTO and hold_texts(_strings(head))):
        return Paths(_strings([*head, *rest]))
    table = _rows(head) if are_rows else _table({config.text_column: head})
    schema = table.schema

    def batches() -> Iterator[pa.RecordBatch]:
        more, n_rows, n_bytes = table, 0, 0
        while True:
            yield from more.to_batches()
            n_rows, n_bytes = n_rows + more.num_rows, n_bytes + more.nbytes
            if config.limit is None and (n_rows > MAX_ITERATED_ROWS or n_bytes > MAX_ITERATED_BYTES):
                most = f"{MAX_ITERATED_ROWS:,} rows or {human_bytes(MAX_ITERATED_BYTES)}"
                raise InputError(f"has more than {most}; pass `limit`, the most rows to read", path=FRAME)
            if n_rows >= (config.limit or sys.maxsize) or not (chunk := [*islice(rest, _GROUP_ROWS)]):
                return
            if not are_rows:
                hold_texts(_strings([head[0], *chunk]))
            more = _rows(chunk, schema) if are_rows else _table({config.text_column: chunk})

    return cast("Frame", table if is_held else pa.RecordBatchReader.from_batches(schema, batches()))


def _rows(items: Sequence[Any], schema: pa.Schema | None = None) -> Any:
    """Return rows as a table; without a schema, with the columns and the types that they have."""
    for item in items:
        if not isinstance(item, Mapping):
            raise InputError(f"inputs holds a {type(item).__name__} beside rows; {_BOTH_WAYS}")
    names = dict.fromkeys(name for item in items for name in item) if schema is None else schema.names
    return _table({name: [item.get(name) for item in items] for name in names}, schema)


def _strings(items: list[Any]) -> list[str | Path]:
    for item in items:
        if not isinstance(item, str | Path):
            raise InputError(f"inputs holds a {type(item).__name__}, which is neither a text nor a path; {_BOTH_WAYS}")
    return items


def _table(columns: Mapping[str, Any], schema: pa.Schema | None = None) -> Any:
    for name, values in columns.items():
        if isinstance(values, str | bytes | Mapping):
            raise InputError(f"column {name!r} is a {type(values).__name__}; pass a list of values", path=FRAME)
    with _reading(columns):
        return pa.table({str(name): values for name, values in columns.items()}, schema)


def reader_of(inputs: Frame | Paths, corpus_format: CorpusFormat) -> type[Reader]:
    """Return the reader of a corpus, by its first file; a data frame is read as the Parquet file of its rows."""
    if not isinstance(inputs, Paths):
        return reader_named(CorpusFormat.PARQUET)
    first = str(inputs[0])
    if first == STDIN and corpus_format is CorpusFormat.AUTO:
        return reader_named(CorpusFormat.TXT)
    return reader_named(format_of(first, corpus_format)[0])


def write_frame(frame: Frame, folder: Path, config: ExtractConfig) -> Path:
    """Write the columns of a table that are read to a Parquet file of `folder`; the caller deletes it.

    The bytes follow from the values, not from the batches, the other columns or the order of the columns.
    """
    if config.format not in (CorpusFormat.AUTO, CorpusFormat.PARQUET):
        raise InputError(f"is a data frame, not {config.format}; leave out `format`", path=FRAME)
    path = folder / "frame.parquet"
    n_rows = 0
    with _reading(frame):
        kinds, tables = _opened(frame, config)
        check_columns(FRAME, nested_names(kinds), config)
        found = {name: find_field(kinds, name) for name in needed_columns(config)}
        schema = pa.schema({name: _plain(kind) for name, (_, kind) in found.items()})
        for field in schema:
            try:
                pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
            except pa.ArrowException:
                raise _unread(field.name, field.type, "cast it, for example to a string") from None
        with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
            for table in _groups(tables):
                columns = [column_at(table, way).cast(schema.field(name).type) for name, (way, _) in found.items()]
                # DuckDB's HUGEINT may have more digits than its type in Arrow.
                for column in columns:
                    column.validate(full=pa.types.is_decimal(column.type))
                writer.write_table(pa.table(columns, schema=schema).combine_chunks())
                n_rows += table.num_rows
    if not n_rows and isinstance(frame, pa.RecordBatchReader):
        raise InputError("has no rows left: a RecordBatchReader can be read once; pass a new one", path=FRAME)
    return path


def parquet_frame(path: str) -> Frame:
    """Return a Parquet file as a frame."""
    reader = ParquetReader(local_file(path))
    batches = (batch for _, batch in reader.batches(reader.columns))
    return cast("Frame", pa.RecordBatchReader.from_batches(reader.schema, batches))


def _opened(frame: Any, config: ExtractConfig) -> tuple[pa.Schema, Iterable[pa.Table]]:
    """Return the schema of a table and its rows, which can be read once; only what is needed if the rest costs time."""
    if isinstance(frame, pl.DataFrame | pl.LazyFrame):
        schema = frame.lazy().collect_schema()
        chosen = frame.lazy().select(_held_columns("polars", schema.names(), schema.dtypes(), config)).collect()
        oldest = pl.CompatLevel.oldest()
        tables = (piece.to_arrow(compat_level=oldest) for piece in chosen.iter_slices(_GROUP_ROWS))
        return chosen.clear().to_arrow(compat_level=oldest).schema, tables
    if _is_from("datasets", "Dataset", frame):
        if frame.format["type"] == "custom":
            raise InputError("has a transform, which is not applied to its rows; pass `dataset.map(f)`", path=FRAME)
        chosen = frame.select_columns(_held_columns("datasets", frame.column_names, (), config))
        return chosen.features.arrow_schema, chosen.with_format("arrow").iter(_GROUP_ROWS)
    if _is_from("pandas", "DataFrame", frame):
        names = [str(name) for name in frame.columns]
        held = _held_columns("pandas", names, frame.dtypes, config)
        # Without the index.
        frame = frame.loc[:, [name in held for name in names]].reset_index(drop=True)
    if _is_from("duckdb", "DuckDBPyRelation", frame):
        _held_columns("duckdb", frame.columns, frame.types, config)
    # A generator behind a reader raises its own errors, which a stream would change.
    reader = frame if isinstance(frame, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(frame)
    return reader.schema, (pa.Table.from_batches([batch]) for batch in reader)


def _held_columns(library: str, names: Sequence[str], kinds: Sequence[Any], config: ExtractConfig) -> list[str]:
    """Return the columns of a table that are read, each once: for a field, the column that holds it."""
    holders = {name: name if name in names else name.partition(".")[0] for name in needed_columns(config)}
    check_columns(FRAME, [*names, *(name for name in holders if name not in names and holders[name] in names)], config)
    for name, kind in zip(names, kinds, strict=False):
        lost, remedy = _LOST[library]
        if name in holders.values() and re.search(lost, _QUOTED.sub("", str(kind))):
            raise _unread(name, kind, remedy.format(name=name))
    return list(dict.fromkeys(holders.values()))


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
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type)), getattr(kind, "list_size", -1))
    if kinds.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    return kind


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of tables in tables of `_GROUP_ROWS` rows, and the rest."""
    held: list[pa.Table] = []
    n_rows = 0
    for table in tables:
        held.append(table)
        n_rows += table.num_rows
        if n_rows >= _GROUP_ROWS:
            whole = pa.concat_tables(held)
            n_left = n_rows % _GROUP_ROWS
            yield from (whole.slice(at, _GROUP_ROWS) for at in range(0, n_rows - n_left, _GROUP_ROWS))
            held, n_rows = [whole.slice(n_rows - n_left)], n_left
    if n_rows:
        yield pa.concat_tables(held)


@contextmanager
def _reading(frame: object) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # The library of the frame may raise errors of its own.
        is_system = getattr(error, "errno", None) is not None
        remedy = "check the disk" if is_system else "convert it to a data frame of types that Parquet has"
        reason = f"the {type(frame).__name__} cannot be read as a table ({first_line(error)}); {remedy}"
        raise InputError(reason, path=FRAME) from error
