"""Tables that describe vectors from elsewhere: rows with named columns, read in order, a batch at a time."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import CorpusFormat, Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus.columns import kind_of, type_of
from bertfeat.corpus.content import Fault, RowError, clean, decode
from bertfeat.corpus.delimited import CsvReader, TsvReader
from bertfeat.corpus.jsonl import parse
from bertfeat.corpus.linestreams import first_line, open_stream, read_lines, strip_line_end
from bertfeat.corpus.pagesizes import Group, read_groups
from bertfeat.corpus.parquet import batch_rows
from bertfeat.corpus.tabular import INT64, shown
from bertfeat.errors import InputError
from bertfeat.records import InputFile

_BATCH_ROWS = 4096
# The most values of a vector.
_MAX_WIDTH = 1 << 16
_POLARS = {"string": pl.String, "bool": pl.Boolean, "int64": pl.Int64, "double": pl.Float64}


class Batch(NamedTuple):
    """Consecutive rows: the number of each in the file, for messages, and an Arrow array per column."""

    rows: Sequence[int]
    columns: Mapping[str, Any]


class RowTable(ABC):
    """A file of rows with columns.

    Attributes:
        types: The Arrow type of each column.
    """

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self.types: dict[str, Any] = self._types()

    @abstractmethod
    def _types(self) -> dict[str, Any]:
        """Return the columns and their types; refuse a file that cannot be read."""

    def _check_names(self, names: Sequence[str]) -> None:
        """Refuse columns that a store cannot have."""
        if not any(names):
            raise InputError("has no columns with names; write a header", path=self.file.path)
        for place, name in enumerate(names):
            if not name:
                reason = f"column {place + 1} has no name; name it, or leave out the index of a data frame"
                raise InputError(reason, path=self.file.path)
            if names.count(name) > 1:
                raise InputError(f"two columns are named {name!r}; rename one", path=self.file.path)

    @abstractmethod
    def batches(self, names: Sequence[str]) -> Iterator[Batch]:
        """Yield some columns of all rows, in order.

        Raises:
            InputError: A row cannot be read.
        """


class CsvTable(RowTable):
    """Reads .csv and .tsv, whose values are all texts."""

    def _types(self) -> dict[str, Any]:
        self._reader = TsvReader if self.file.format == CorpusFormat.TSV else CsvReader
        try:
            with closing(open_stream(self.file)) as stream:
                lines = (decode(line) for _, _, line in read_lines(stream, 0, 1))
                names = next(csv.reader(lines, delimiter=self._reader.delimiter, strict=True), [])
        except (csv.Error, RowError) as error:
            raise InputError(f"the header cannot be read: {error}", path=self.file.path, row=1) from None
        self._check_names(names)
        return dict.fromkeys(names, pa.string())

    def batches(self, names: Sequence[str]) -> Iterator[Batch]:
        """Yield some columns of all rows, in order."""
        # Every column is text, so that any of them may be the text.
        config = ExtractConfig(text_column=next(iter(self.types)), keep_columns=tuple(names), levels=(Level.SENTENCE,))
        with closing(self._reader(self.file, config)) as reader:
            yield from _batches(self._records(reader), names, self.types)

    def _records(self, reader: CsvReader) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for row in reader.rows(reader.start):
            if isinstance(row.content, Fault):
                raise InputError(row.content.reason, path=self.file.path, row=row.row)
            yield row.row, row.content.kept


class JsonlTable(RowTable):
    """Reads .jsonl: one object per line; a column that a row lacks is null there."""

    def _types(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for row, record in self._records():
            for name, value in record.items():
                # One value of each type is enough to tell which type holds all.
                kinds = found.setdefault(name, {})
                kinds.setdefault(kind_of(value), value)
                if type_of(kinds.values()) is None:
                    other = next(one for one in kinds.values() if one is not None)
                    reason = f"column {name!r} holds {shown(value)}, rows before hold {shown(other)}; write one type"
                    raise InputError(reason, path=self.file.path, row=row)
        if found:
            self._check_names(list(found))
        return {name: type_of(kinds.values()) for name, kinds in found.items()}

    def batches(self, names: Sequence[str]) -> Iterator[Batch]:
        """Yield some columns of all rows, in order."""
        return _batches(self._records(), names, self.types)

    def _records(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for row, _, value in json_lines_at(self.file, 0, 1):
            for name, item in value.items():
                if isinstance(item, list | dict):
                    reason = f"column {name!r} holds a {type(item).__name__}; keep plain values only"
                    raise InputError(reason, path=self.file.path, row=row)
                if isinstance(item, int) and item not in INT64:
                    reason = f"column {name!r} holds {shown(item)}, which is beyond 64 bits; write it as a string"
                    raise InputError(reason, path=self.file.path, row=row)
            yield row, {clean(n): clean(item) if isinstance(item, str) else item for n, item in value.items()}


class ParquetTable(RowTable):
    """Reads .parquet, a piece of a row group at a time."""

    def _types(self) -> dict[str, Any]:
        with self._opened() as (_, _, parquet):
            schema = parquet.schema_arrow
            self._check_names(schema.names)
            types = {field.name: field.type for field in schema}
        return {name: kind.value_type if pa.types.is_dictionary(kind) else kind for name, kind in types.items()}

    def batches(self, names: Sequence[str]) -> Iterator[Batch]:
        """Yield some columns of all rows, in order."""
        first = 1
        with self._opened() as (source, groups, parquet):
            for number in range(len(groups)):
                n_rows = batch_rows(source, groups, number, names, self.file.path, width=_MAX_WIDTH)
                for batch in parquet.iter_batches(n_rows, row_groups=[number], columns=list(names), use_threads=False):
                    # Texts may not be UTF-8, and offsets may be out of range.
                    batch.validate(full=True)
                    columns = {name: batch.column(name) for name in names}
                    plain = {n: c.cast(self.types[n]) if c.type != self.types[n] else c for n, c in columns.items()}
                    yield Batch(range(first, first + batch.num_rows), plain)
                    first += batch.num_rows

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Sequence[Group], pq.ParquetFile]]:
        path = self.file.path
        try:
            with ExitStack() as stack:
                # Arrow may end the process on a footer that this reader cannot read.
                source = stack.enter_context(pa.OSFile(path))
                groups = read_groups(source)
                parquet = pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
                yield source, groups, stack.enter_context(parquet)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise InputError(f"cannot be read as a table ({first_line(error)}); write it again", path=path) from error


TABLE_OF: dict[str, type[RowTable]] = {
    CorpusFormat.CSV: CsvTable,
    CorpusFormat.TSV: CsvTable,
    CorpusFormat.JSONL: JsonlTable,
    CorpusFormat.PARQUET: ParquetTable,
}


class RowCursor:
    """Reader of consecutive rows of a table; a row before the last one that was taken opens the file again."""

    def __init__(self, table: RowTable, names: Sequence[str]) -> None:
        self._table = table
        self._names = list(names)
        self._next = 0
        self._batches: Iterator[Batch] = iter(())
        self._rest: Batch | None = None

    def close(self) -> None:
        """Close the file."""
        self._batches, self._rest, self._next = iter(()), None, 0

    def take(self, first: int, n_rows: int) -> Iterator[Batch]:
        """Yield the rows `first` to `first + n_rows - 1`, counted from 0, as batches.

        Raises:
            InputError: A row cannot be read, or the table ends before.
        """
        if first < self._next or not self._next:
            self._batches, self._rest, self._next = self._table.batches(self._names), None, 0
        end = first + n_rows
        while self._next < end:
            batch = self._rest or next(self._batches, None)
            if batch is None:
                raise InputError("has fewer rows than it had; was it changed?", path=self._table.file.path)
            start = min(max(first - self._next, 0), len(batch.rows))
            stop = min(end - self._next, len(batch.rows))
            self._next += stop
            self._rest = _sliced(batch, stop, len(batch.rows)) if stop < len(batch.rows) else None
            if stop > start:
                yield _sliced(batch, start, stop)


def json_lines_at(file: InputFile, offset: int, first_row: int) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the number, the place in bytes and the object of each line, from a line on.

    Raises:
        InputError: A line is not a JSON object.
    """
    with closing(open_stream(file)) as stream:
        for at, row, line in read_lines(stream, offset, first_row):
            try:
                value = parse(decode(strip_line_end(line)), "line")
                if not isinstance(value, dict):
                    raise RowError(f"the line holds a {type(value).__name__}, not an object")
            except RowError as error:
                raise InputError(str(error), path=file.path, row=row) from None
            yield row, at, value


def _batches(
    records: Iterator[tuple[int, Mapping[str, Any]]], names: Sequence[str], types: Mapping[str, Any]
) -> Iterator[Batch]:
    """Yield numbered records as batches."""
    while found := [*islice(records, _BATCH_ROWS)]:
        columns = {}
        for name in names:
            # Not by `pa.array`, which imports pandas.
            series = pl.Series([record.get(name) for _, record in found], dtype=_POLARS[str(types[name])])
            columns[name] = series.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(types[name])
        yield Batch([row for row, _ in found], columns)


def _sliced(batch: Batch, start: int, stop: int) -> Batch:
    return Batch(batch.rows[start:stop], {name: c.slice(start, stop - start) for name, c in batch.columns.items()})
