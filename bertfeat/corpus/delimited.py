"""Readers of CSV and TSV; the syntax is strict, and records may span lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Content, Row, RowError, Start, TextReader, decode, without_blank_tail
from bertfeat.corpus.tabular import check_columns, content_of, needed_columns
from bertfeat.errors import InputError
from bertfeat.records import InputFile

# The delimiters that a message may suggest, the most likely first.
_DELIMITERS = "\t;|,"
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")
# A name of a column has fewer words than this.
_LEAST_WORDS = 5
# The limit of the csv module is that of the process, so it is only raised; it takes a C long.
_MAX_FIELD = 2**31 - 1


class CsvReader(TextReader):
    """Reads .csv: fields may be quoted with `"`, which is doubled inside quotes.

    Without a header, columns are `column_1`, `column_2`, ...
    """

    format = CorpusFormat.CSV
    endings = (".csv",)
    has_columns = has_delimiter = True
    delimiter = ","

    def __init__(self, file: InputFile, *, delimiter: str | None = None, no_header: bool = False) -> None:
        super().__init__(file)
        csv.field_size_limit(max(_MAX_FIELD, csv.field_size_limit()))
        self.delimiter = delimiter or self.delimiter
        self._no_header = no_header
        self._first = "first row" if no_header else "header"
        fields, raw = next(((fields, raw) for _, _, raw, fields in self._records(self.start)), ([], b""))
        if isinstance(fields, RowError):
            raise InputError(f"the {self._first} cannot be read: {fields}", path=self.file.path, row=1)
        if raw and not fields:
            raise InputError(f"the {self._first} is empty; remove the empty line", path=self.file.path, row=1)
        self._first_row = fields
        self.columns = [f"column_{n}" for n in range(1, len(fields) + 1)] if no_header else fields
        self.types = dict.fromkeys(self.columns, pa.string())
        self._places = {name: place for place, name in enumerate(self.columns)}
        if not no_header:
            self._stream.seek(0)
            n_bom = len(linestreams.BOM) if self._stream.read(len(linestreams.BOM)) == linestreams.BOM else 0
            self.start = Start(n_bom + len(raw), 1 + raw.count(b"\n"))

    def use(self, config: ExtractConfig) -> None:
        """Check that there are the columns that settings name."""
        if not self.columns:
            return
        remedy = self._remedy(self._first_row, needed_columns(config))
        check_columns(self.file.path, self.columns, config, remedy=remedy)
        self._places = {name: self._places[name] for name in needed_columns(config)}

    def _remedy(self, fields: Sequence[str], needed: Sequence[str]) -> str | None:
        """Return what to do about a missing column if columns have numbers, or if the first row is not a header."""
        marks = [mark for mark in _DELIMITERS if mark != self.delimiter and any(mark in field for field in fields)]
        if marks and len(fields) == 1:
            return _delimiter_remedy(marks[0])
        if self._no_header:
            return "number the columns from 1: `text_column='1'`"
        if any(map(_looks_like_data, fields)) or any(map(str.isdecimal, needed)):
            return "if that is data and no header, pass `no_header=True` and number the columns: `text_column='1'`"
        # Names may have commas, but hardly the others.
        return _delimiter_remedy(marks[0]) if marks and marks[0] != "," else None

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per record, from a record on."""
        if not self.columns:
            return iter(())
        return without_blank_tail(map(self._row, self._records(start)))

    def _records(self, start: Start) -> Iterator[tuple[int, int, bytes, list[str] | RowError]]:
        """Yield (offset, line number, bytes, fields) of each record, or the reason why it has no fields."""
        # The lines of the current record, and what is wrong with them.
        lines: list[tuple[int, int, bytes]] = []
        faults: list[RowError] = []

        def texts() -> Iterator[str]:
            for line in self.lines(start):
                lines.append(line)
                try:
                    text = decode(line[2])
                except RowError as error:
                    # The record must end where it would with good bytes: report it once it is whole.
                    faults.append(error)
                    text = line[2].decode(errors="replace")
                yield text

        parser = csv.reader(texts(), delimiter=self.delimiter, strict=True)
        while True:
            lines.clear()
            faults.clear()
            fields: list[str] | RowError
            try:
                fields = next(parser)
            except StopIteration:
                return
            except csv.Error as error:
                fields = RowError(f'not {self.format}: {error}; write fields with quotes inside as "...""..."')
            offset, row, _ = lines[0]
            yield offset, row, b"".join([raw for _, _, raw in lines]), faults[0] if faults else fields

    def _row(self, record: tuple[int, int, bytes, list[str] | RowError]) -> Row:
        offset, row, raw, fields = record
        values: Mapping[str, Any] | RowError
        if isinstance(fields, RowError):
            values = fields
        elif not fields:
            values = RowError("the line is empty; remove it")
        elif len(fields) != len(self.columns):
            reason = f"has {len(fields)} fields where the {self._first} has {len(self.columns)}"
            values = RowError(f"{reason}; quote fields that hold delimiters")
        else:
            values = {name: fields[place] for name, place in self._places.items()}
        return Row(offset, row, None, values, raw)

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the content of a record."""
        return content_of(values, config)


class TsvReader(CsvReader):
    """Reads .tsv, which differs from .csv only in the delimiter."""

    format = CorpusFormat.TSV
    endings = (".tsv",)
    delimiter = "\t"


def _delimiter_remedy(mark: str) -> str:
    if mark == "\t":
        return "if tabs separate them, pass `delimiter='tab'`"
    return f"if {mark!r} separates them, pass `delimiter={mark!r}`"


def _looks_like_data(field: str) -> bool:
    """Return whether a field of the first row is a number or a text, and hardly the name of a column."""
    return bool(_NUMBER.fullmatch(field.strip())) or len(field.split()) >= _LEAST_WORDS
