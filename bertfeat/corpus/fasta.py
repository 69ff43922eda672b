"""Reader of FASTA: sequences of proteins or DNA, each after a header line that starts with `>`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Content, Row, RowError, TextReader, decode, tried
from bertfeat.corpus.tabular import check_columns, content_of
from bertfeat.records import FileSlice, InputFile

_GAP = re.compile(r"[ \t]+")


class FastaReader(TextReader):
    """Reads FASTA. The columns are `id`, the first word of the header, `description`, its rest, and `text`.

    The text is the sequence as it is, without whitespace. Lines that start with `;` are comments.
    """

    format = CorpusFormat.FASTA
    endings = (".fasta", ".fa", ".faa", ".fna")
    has_columns = True
    own_id = "id"
    settings = ("id_column", "keep_columns")
    columns = ("id", "description", "text")

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self.types = dict.fromkeys(self.columns, pa.string())

    def use(self, config: ExtractConfig) -> None:
        """Check that there are the columns that settings name."""
        check_columns(self.file.path, self.columns, config)

    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield one row per record, from a record on; lines before the first header are a row, too."""
        record: list[bytes] = []
        begun = (start.offset, start.row)
        for at, number, line in self.lines(start):
            if record and line.startswith(b">"):
                yield Row(*begun, None, tried(_values, record), b"".join(record))
                record = []
            if not record and (line.startswith(b";") or line.isspace()):
                continue
            begun = begun if record else (at, number)
            record.append(line)
        if record:
            yield Row(*begun, None, tried(_values, record), b"".join(record))

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the content of a record."""
        return content_of(values, config)


def _values(record: Sequence[bytes]) -> Mapping[str, str]:
    header, *lines = record
    if not header.startswith(b">"):
        raise RowError("the sequence has no header; write a line '>ID' before it")
    name, *description = _GAP.split(decode(header[1:]).strip(), maxsplit=1)
    if not name:
        raise RowError("the header has no id; write '>ID'")
    text = "".join(decode(b"".join(line for line in lines if not line.startswith(b";"))).split())
    if not text:
        raise RowError(f"{name!r:.60} has no sequence; write it in the lines after the header")
    return {"id": name, "description": "".join(description), "text": text}
