"""Sources of the rows that vectors from elsewhere stand for: lines of ids, or the sentences of a CoNLL file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Content, Fault, Reader, Row, Start
from bertfeat.corpus.formats import open_reader
from bertfeat.errors import InputError
from bertfeat.records import Column, DocId, FileSlice, InputFile

Words = tuple[str, ...]


class Group(NamedTuple):
    """A document of a source: its id, its rows (None if the source does not say), its words, and its place.

    `n_units` counts the lines, rows or sentences of the file that it takes; offset, row and state are those of the
    first one, as in `FileSlice`. `n_bytes` are those of its further columns, about.
    """

    doc_id: DocId
    n_rows: int | None
    words: Words | None
    n_units: int
    offset: int
    row: int
    state: str | None = None
    n_bytes: int = 0


class SourceRows(NamedTuple):
    """The documents of a shard: their ids, rows and words, as in `Group`, and the further columns of all rows."""

    doc_ids: list[DocId]
    n_rows: list[int | None]
    words: list[Words | None]
    columns: Mapping[str, Any]


class RowSource(ABC):
    """A source of rows, one document after the other.

    Attributes:
        file: Its file.
        id_type: The Arrow type of its ids, `int64` or `string`.
        columns: Its further columns.
        kept_arrow: See `CorpusSchema`.
    """

    columns: tuple[Column, ...] = ()
    kept_arrow: str | None = None
    id_type = "int64"

    def __init__(self, file: InputFile) -> None:
        self.file = file

    @abstractmethod
    def groups(self) -> Iterator[Group]:
        """Yield the documents.

        Raises:
            InputError: A row cannot be read or used.
        """

    @abstractmethod
    def read(self, piece: FileSlice) -> SourceRows:
        """Return the documents of a piece of the file, which has whole documents."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class _CorpusRows(RowSource):
    """Rows from a reader of a corpus."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self._reader: Reader = open_reader(file, ExtractConfig(format=CorpusFormat(file.format)))

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def _rows(self, start: Start) -> Iterator[tuple[Row, Content]]:
        for row in self._reader.rows(start):
            if isinstance(row.content, Fault):
                raise InputError(row.content.reason, path=self.file.path, row=row.row)
            yield row, row.content


class LineIds(_CorpusRows):
    """The lines of a .txt: an id for each row or, if the vectors say where documents end, for each document."""

    id_type = "string"

    def __init__(self, file: InputFile, *, per_row: bool) -> None:
        super().__init__(file)
        self._per_row = per_row

    def groups(self) -> Iterator[Group]:
        """Yield the documents."""
        return self._grouped(self._rows(self._reader.start))

    def read(self, piece: FileSlice) -> SourceRows:
        """Return the documents of a piece of the file."""
        rows = islice(self._rows(Start(piece.offset, piece.row, piece.state)), piece.n_rows)
        found = [*self._grouped(rows)]
        return SourceRows([each.doc_id for each in found], [each.n_rows for each in found], [None] * len(found), {})

    def _grouped(self, rows: Iterator[tuple[Row, Content]]) -> Iterator[Group]:
        group: Group | None = None
        for row, content in rows:
            if not content.text.strip():
                raise InputError("the line is empty; write an id", path=self.file.path, row=row.row)
            if group is not None and self._per_row and content.text == group.doc_id:
                n_rows = group.n_units + 1
                group = group._replace(n_rows=n_rows, n_units=n_rows)
                continue
            if group is not None:
                yield group
            group = Group(content.text, 1 if self._per_row else None, None, 1, row.offset, row.row, row.state)
        if group is not None:
            yield group


class SentenceRows(_CorpusRows):
    """The sentences of a CoNLL or CoNLL-U file, with their words and tags; ids are their numbers, from 0 on."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self.columns = tuple(Column(name, "string") for name in self._reader.annotations or ())

    def groups(self) -> Iterator[Group]:
        """Yield the documents."""
        for number, (row, content) in enumerate(self._rows(self._reader.start)):
            words = content.words or ()
            yield Group(number, len(words), words, 1, row.offset, row.row, row.state)

    def read(self, piece: FileSlice) -> SourceRows:
        """Return the documents of a piece of the file; their ids are those of the vectors."""
        rows = islice(self._rows(Start(piece.offset, piece.row, piece.state)), piece.n_rows)
        contents = [content for _, content in rows]
        words: list[Words | None] = [content.words or () for content in contents]
        columns = {
            column.name: [value for content in contents for value in content.annotations[column.name]]
            for column in self.columns
        }
        return SourceRows([], [len(found or ()) for found in words], words, columns)
