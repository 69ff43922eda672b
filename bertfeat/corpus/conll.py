"""CoNLL columns: one word a line, its tags beside it, a blank line between sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from bertfeat.config import CorpusFormat, ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Content, Row, RowError, Start
from bertfeat.corpus.sentences import (
    NEW_DOCUMENT,
    LineKind,
    NumberedLine,
    SentenceReader,
    column_names,
    sentence_content,
)
from bertfeat.records import InputFile

DOCSTART = b"-DOCSTART-"
_COMMENT = b"# "
_BLANKS = b" \t\r\n"
# The layout is told from the head of the file, so that a slice far into it costs no pass over what is before.
SNIFFED_LINES = 2000


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file lays out its lines.

    Attributes:
        separator: A tab, or None for runs of blanks.
        n_columns: Columns of a line.
        is_indexed: The first column counts the words of each sentence from 1, and the word is the second.
    """

    separator: str | None
    n_columns: int
    is_indexed: bool

    @property
    def first(self) -> int:
        """The 0-based column after the word."""
        return 2 if self.is_indexed else 1


class ConllReader(SentenceReader):
    """Reads CoNLL columns; the word columns are `column_N` by their 1-based number in the file, and `label`."""

    format = CorpusFormat.CONLL
    endings = (".conll", ".iob", ".iob2", ".bio")

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        self.annotations = None
        layout = _layout_of(line for _, _, line in self.lines(self.start))
        if layout is None:
            return
        self._layout = layout
        self._names = tuple(f"column_{place + 1}" for place in range(layout.first, layout.n_columns))
        self._label = self.label_place(self._names, layout.first + 1)
        self.annotations = column_names(self._names, self._label)

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield a row a sentence, from a line on."""
        return iter(()) if self.annotations is None else super().rows(start)

    def kind_of(self, line: bytes) -> LineKind:
        """Tell what a line is; `# ` may start a comment, or be a hash sign with its tags."""
        if not line.strip(_BLANKS):
            return LineKind.BLANK
        if line.startswith(DOCSTART):
            return LineKind.BOUNDARY
        if line.startswith(_COMMENT) and self._is_comment(line):
            return LineKind.BOUNDARY if line.startswith(NEW_DOCUMENT) else LineKind.COMMENT
        return LineKind.WORD

    def _is_comment(self, line: bytes) -> bool:
        layout = self._layout
        if layout.is_indexed:
            return True
        return layout.n_columns > 1 and _n_columns(line, layout.separator) != layout.n_columns

    def content_of(self, lines: Sequence[NumberedLine]) -> Content:
        """Make the content of a sentence.

        Raises:
            RowError: A line has the wrong number of columns, or bytes that are no UTF-8.
        """
        layout = self._layout
        table = [self._fields(number, line) for number, line in lines]
        if layout.is_indexed:
            self._check_index(lines, table)
        words = [fields[layout.first - 1] or "" for fields in table]
        columns = [[fields[place] for fields in table] for place in range(layout.first, layout.n_columns)]
        return sentence_content(words, self._names, columns, self._label)

    def _fields(self, number: int, line: bytes) -> list[str | None]:
        layout = self._layout
        fields: list[str | None] = [*self.fields_of(number, line, layout.separator)]
        n_missing = layout.n_columns - len(fields)
        if n_missing == 0:
            return fields
        # Files that count their words leave out annotators' notes at the end of a line (Universal NER); a tag asked
        # for is never left out.
        if not layout.is_indexed or n_missing < 0 or len(fields) < layout.first:
            raise RowError(f"line {number} has {len(fields)} columns where the file has {layout.n_columns}")
        if self._label is not None and len(fields) <= layout.first + self._label:
            raise RowError(f"line {number} has {len(fields)} columns, and no label there; pass another --label-column")
        return fields + [None] * n_missing

    def _check_index(self, lines: Sequence[NumberedLine], table: Sequence[Sequence[str | None]]) -> None:
        for place, fields in enumerate(table):
            if fields[0] != str(place + 1):
                raise RowError(f"line {lines[place][0]} starts with {fields[0]!r} where word {place + 1} is counted")


def _layout_of(lines: Iterable[bytes]) -> Layout | None:
    """Tell the layout from the first word lines; None where there is none."""
    head = list(_head(_stripped(lines)))
    first = next((line for line in head if line), None)
    if first is None:
        return None
    separator = "\t" if b"\t" in first else None
    n_columns = _n_columns(first, separator)
    if n_columns > 1 and _counts_words(head):
        # Lines may lack columns at the end there, the first one too.
        n_columns = max(_n_columns(line, separator) for line in head if line)
        return Layout(separator, n_columns, is_indexed=True)
    return Layout(separator, n_columns, is_indexed=False)


def _head(lines: Iterable[bytes]) -> Iterator[bytes]:
    n_bytes = 0
    for line in islice(lines, SNIFFED_LINES):
        n_bytes += len(line)
        if n_bytes > linestreams.MAX_ROW_BYTES:
            return
        yield line


def _n_columns(line: bytes, separator: str | None) -> int:
    return line.count(b"\t") + 1 if separator else len(line.split(None, linestreams.MAX_ROW_VALUES))


def _stripped(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield word lines without their end, and an empty line for what lies between sentences."""
    for line in lines:
        if line.startswith(DOCSTART) or not line.strip(_BLANKS):
            yield b""
        elif not line.startswith(_COMMENT):
            yield line.rstrip(b"\r\n")


def _counts_words(lines: Iterable[bytes]) -> bool:
    """Tell whether the first column runs 1, 2, ... in each sentence, and beyond 1 in some."""
    count = most = 0
    for line in lines:
        if not line:
            count = 0
            continue
        count += 1
        most = max(most, count)
        if line.split(None, 1)[0] != b"%d" % count:
            return False
    return most > 1
