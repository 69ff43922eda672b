"""Readers of CSV and TSV; the syntax is strict, and records may span lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import (
    Content,
    Fault,
    Row,
    RowError,
    Start,
    TextReader,
    decode,
    fault,
    size_of,
    without_blank_tail,
)
from bertfeat.corpus.linestreams import LongLine
from bertfeat.corpus.tabular import check_columns, content_of, n_values, needed_columns
from bertfeat.errors import InputError
from bertfeat.records import InputFile

# The delimiters that a message may suggest, the most likely first.
_DELIMITERS = "\t;|,"
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")
# A name of a column has fewer words than this.
_LEAST_WORDS = 5


class _Record(NamedTuple):
    """One CSV record: its start, its bytes, and its fields or the reason why it has none."""

    offset: int
    row: int
    raw: bytes
    fields: list[str] | RowError


class CsvReader(TextReader):
    """Reads .csv: fields may be quoted with `"`, which is doubled inside quotes."""

    format = CorpusFormat.CSV
    endings = (".csv",)
    has_columns = has_delimiter = True
    delimiter = ","

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        # The limit is that of the whole process: raise it, never lower what other code has set.
        csv.field_size_limit(max(csv.field_size_limit(), linestreams.MAX_ROW_BYTES))
        self.delimiter = config.delimiter or self.delimiter
        self._first = "first row" if config.no_header else "header"
        record = next(_Feed(self, self.start).records(), None)
        self._n_fields = 0
        if record is None:
            return
        if isinstance(record.fields, RowError):
            raise InputError(f"the {self._first} cannot be read: {record.fields}", path=self.file.path, row=1)
        self._n_fields = len(record.fields)
        header = [f"column_{n}" for n in range(1, self._n_fields + 1)] if config.no_header else record.fields
        check_columns(self.file.path, header, config, remedy=self._remedy(record.fields))
        self.kept_types = dict.fromkeys(config.keep_columns, pa.string())
        self._columns = {name: header.index(name) for name in needed_columns(config)}
        if config.no_header:
            return
        self._stream.seek(0)
        n_bom = len(linestreams.BOM) if self._stream.read(len(linestreams.BOM)) == linestreams.BOM else 0
        self.start = Start(n_bom + len(record.raw), 1 + record.raw.count(b"\n"))

    def _remedy(self, fields: Sequence[str]) -> str | None:
        """Return what to do about a missing column if columns have numbers, or if the first row is not a header."""
        marks = [mark for mark in _DELIMITERS if mark != self.delimiter and any(mark in field for field in fields)]
        if marks and len(fields) == 1:
            return _delimiter_remedy(marks[0])
        if self.config.no_header:
            return "number the columns from 1: `text_column='1'`"
        if any(map(_looks_like_data, fields)) or any(map(str.isdecimal, needed_columns(self.config))):
            return "if that is data and no header, pass `no_header=True` and number the columns: `text_column='1'`"
        # Names may have commas, but hardly the others.
        return _delimiter_remedy(marks[0]) if marks and marks[0] != "," else None

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per record, from a record on."""
        if self._n_fields == 0:
            return iter(())
        return without_blank_tail(map(self._row, _Feed(self, start).records()))

    def _row(self, record: _Record) -> Row:
        content: Content | Fault
        try:
            content = self._content(record.fields)
        except RowError as error:
            content = fault(error, record.raw)
        return Row(record.offset, record.row, None, content)

    def _content(self, fields: list[str] | RowError) -> Content:
        if isinstance(fields, RowError):
            raise fields
        if not fields:
            raise RowError("the line is empty; remove it")
        if len(fields) != self._n_fields:
            raise RowError(
                f"has {len(fields)} fields where the {self._first} has {self._n_fields}; "
                "quote fields that hold delimiters"
            )
        return content_of({name: fields[place] for name, place in self._columns.items()}, self.config)


class TsvReader(CsvReader):
    """Reads .tsv, which differs from .csv only in the delimiter."""

    format = CorpusFormat.TSV
    endings = (".tsv",)
    delimiter = "\t"


class _Feed:
    """Gives lines to the csv module, and keeps the bytes of the current record."""

    def __init__(self, reader: CsvReader, start: Start) -> None:
        self._lines = reader.lines(start)
        self._reader = reader
        self._delimiter = reader.delimiter.encode()

    def _begin(self) -> None:
        self._raw: list[bytes] = []
        self._n_bytes = self._n_values = 0
        self._fault: RowError | None = None

    def records(self) -> Iterator[_Record]:
        """Yield the records; one with a bad byte has no fields."""
        parser = csv.reader(self, delimiter=self._reader.delimiter, strict=True)
        while True:
            self._begin()
            fields: list[str] | RowError
            try:
                fields = next(parser)
            except StopIteration:
                return
            except RowError as error:
                fields = error
            except csv.Error as error:
                fields = RowError(f'not {self._reader.format}: {error}; write fields with quotes inside as "...""..."')
            raw = self._raw[0] if len(self._raw) == 1 else b"".join(self._raw)
            yield _Record(self._offset, self._row, raw, self._fault or fields)

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        offset, row, line = next(self._lines)
        if not self._raw:
            self._offset, self._row = offset, row
        self._raw.append(line)
        self._n_bytes += size_of(line)
        self._n_values += line.count(self._delimiter)
        if self._n_values > linestreams.MAX_ROW_VALUES:
            self._n_values = n_values(b"".join(self._raw), self._delimiter)
        if self._n_bytes > linestreams.MAX_ROW_BYTES or self._n_values > linestreams.MAX_ROW_VALUES:
            raise self._pass_over()
        try:
            return decode(line)
        except RowError as error:
            # The record must end where it would with good bytes: report it once it is whole.
            self._fault = self._fault or error
            return line.decode(errors="replace")

    def _pass_over(self) -> RowError:
        """Skip the rest of a record that is too large: it ends with a line after which no quote is open."""
        n_quotes = sum(map(_n_quotes, self._raw))
        self._raw = [LongLine(self._raw[0][:100])]
        while n_quotes % 2:
            _, _, line = next(self._lines, (0, 0, None))
            if line is None:
                break
            self._n_bytes += size_of(line)
            n_quotes += _n_quotes(line)
        too_long = self._n_bytes > linestreams.MAX_ROW_BYTES
        return RowError(linestreams.too_long(self._n_bytes) if too_long else linestreams.too_many("fields"))


def _delimiter_remedy(mark: str) -> str:
    if mark == "\t":
        return "if tabs separate them, pass `delimiter='tab'`"
    return f"if {mark!r} separates them, pass `delimiter={mark!r}`"


def _looks_like_data(field: str) -> bool:
    """Return whether a field of the first row is a number or a text, and hardly the name of a column."""
    return bool(_NUMBER.fullmatch(field.strip())) or len(field.split()) >= _LEAST_WORDS


def _n_quotes(line: bytes) -> int:
    return line.n_quotes if isinstance(line, LongLine) else line.count(b'"')
