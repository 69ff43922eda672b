"""Readers of plain text, one document per line, and of CSV and TSV, whose records may span lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import BEGIN, Content, Row, RowError, TextReader, decode, without_blank_tail
from bertfeat.corpus.line_streams import strip_line_end
from bertfeat.corpus.tabular import TABLE_SETTINGS, check_columns, content_of, needed_columns
from bertfeat.errors import InputError
from bertfeat.records import FileSlice, InputFile

_PAIR_SEPARATOR = " ||| "
# What looks like CoNLL: the tag of a span, or ten columns, in this share of the lines of the first bytes.
_TAG = re.compile(rb"\s(?:O|([BIESLU]-\S+))(?!\S)")
_LEAST_LINES, _LEAST_SHARE, _HEAD_BYTES = 3, 0.8, 1 << 16
# The limit of the csv module is that of the process, so it is only raised; it takes a C long.
_MAX_FIELD = 2**31 - 1
_HINT = "; if that is not a header, pass `delimiter`, `no_header` or `format`"


class LineReader(TextReader):
    r"""Reads .txt: each line is a document, empty lines too; text after the last `\n` is one if not empty."""

    format = CorpusFormat.TXT
    endings = (".txt",)
    settings = ("text_pairs",)

    def use(self, config: ExtractConfig) -> None:
        """Refuse CoNLL with the ending of text, unless the format is given."""
        if config.format is CorpusFormat.AUTO and (found := conll_format(self._stream.read(_HEAD_BYTES))):
            reason = f"looks like CoNLL; pass `format='{found}'` (or `format='txt'` if it is not)"
            raise InputError(reason, path=self.file.path)

    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield one row per line, from a line on."""
        return self.line_rows(start, lambda raw: {"text": decode(strip_line_end(raw))})

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the text of a line, or two."""
        if not config.text_pairs:
            return Content(values["text"])
        first, separator, second = values["text"].partition(_PAIR_SEPARATOR)
        return Content(first, second if separator else None)


def conll_format(head: bytes) -> CorpusFormat | None:
    """Return the CoNLL format of the first bytes of a file, or None if they are something else.

    CoNLL has empty lines between sentences, and most other lines hold a word and the tag of a span, or ten columns.
    """
    lines = head.rpartition(b"\n")[0].split(b"\n")
    words = [line for line in lines if line.strip() and not line.startswith((b"#", b"-DOCSTART-"))]
    least = max(_LEAST_LINES, _LEAST_SHARE * len(words))
    if all(map(bytes.strip, lines)):
        return None
    if sum(line.count(b"\t") == 9 for line in words) >= least:
        return CorpusFormat.CONLLU
    tags = [found for line in words if (found := _TAG.search(line))]
    return CorpusFormat.CONLL if len(tags) >= least and any(tag[1] for tag in tags) else None


class CsvReader(TextReader):
    """Reads .csv: fields may be quoted with `"`, which is doubled inside quotes."""

    format = CorpusFormat.CSV
    endings = (".csv",)
    has_columns = True
    settings = (*TABLE_SETTINGS, "no_header", "delimiter")
    delimiter = ","

    def __init__(self, file: InputFile, *, delimiter: str | None = None, no_header: bool = False) -> None:
        super().__init__(file)
        csv.field_size_limit(max(_MAX_FIELD, csv.field_size_limit()))
        self.delimiter = delimiter or self.delimiter
        self._no_header = no_header
        fields = next((fields for *_, fields in self._records(BEGIN)), [])
        if isinstance(fields, RowError):
            raise InputError(f"the first row cannot be read: {fields}", path=file.path, row=1)
        self.columns = [f"column_{n}" for n in range(1, len(fields) + 1)] if no_header else fields
        self.types = dict.fromkeys(self.columns, pa.string())
        self._places = {name: place for place, name in enumerate(self.columns)}

    def use(self, config: ExtractConfig) -> None:
        """Check that there are the columns that settings name."""
        if not self.columns:
            return
        check_columns(self.file.path, self.columns, config, "" if self._no_header else _HINT)
        self._places = {name: self._places[name] for name in needed_columns(config)}

    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield one row per record, from a record on."""
        records = self._records(start)
        if start.offset == 0 and not self._no_header:
            next(records, None)
        return without_blank_tail(map(self._row, records)) if self.columns else iter(())

    def _records(self, start: FileSlice) -> Iterator[tuple[int, int, bytes, list[str] | RowError]]:
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
                fields = next(parser) or RowError("the line is empty; remove it")
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
        elif len(fields) != len(self.columns):
            reason = f"has {len(fields)} fields where the first row has {len(self.columns)}"
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
