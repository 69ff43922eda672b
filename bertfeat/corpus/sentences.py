"""What the CoNLL formats share: a sentence is a run of word lines, and a document a run of sentences."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from enum import Enum, auto

from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Content, Fault, Row, RowError, Start, TextReader, decode, fault, size_of
from bertfeat.errors import InputError

NEW_DOCUMENT = b"# newdoc"
# str.split() without an argument would split at no-break spaces and U+2028 as well, which are part of words.
_BLANKS = re.compile("[ \t]+")

# A word line with its 1-based number.
NumberedLine = tuple[int, bytes]


class LineKind(Enum):
    """What a line is: part of a sentence, its end, the border of a document, or nothing of the text."""

    WORD = auto()
    BLANK = auto()
    BOUNDARY = auto()
    COMMENT = auto()


class _Sentence:
    """The word lines of a sentence: where it starts, and its lines unless they are too many."""

    def __init__(self) -> None:
        self.offset = self.row = self.n_bytes = self._n_values = 0
        self.lines: list[NumberedLine] = []

    def add(self, offset: int, number: int, line: bytes) -> None:
        """Take a line."""
        if not self.n_bytes:
            self.offset, self.row = offset, number
        self.n_bytes += size_of(line)
        self._n_values += 1 + line.count(b" ") + line.count(b"\t")
        if self.excess() is None:
            self.lines.append((number, line))
        else:
            self.lines.clear()

    def excess(self) -> str | None:
        """Return why the sentence is not read, if it is too large."""
        if self.n_bytes > linestreams.MAX_ROW_BYTES:
            return linestreams.too_long(self.n_bytes)
        return linestreams.too_many("words and tags") if self._n_values > linestreams.MAX_ROW_VALUES else None


class SentenceReader(TextReader):
    """Reads files of one word a line. The state of a row is the number of document borders before it."""

    has_documents = has_lists = has_words = True

    @abstractmethod
    def kind_of(self, line: bytes) -> LineKind:
        """Tell what a line is."""

    @abstractmethod
    def content_of(self, lines: Sequence[NumberedLine]) -> Content:
        """Make the content of a sentence.

        Raises:
            RowError: A line has the wrong number of columns, or bytes that are no UTF-8.
        """

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield a row a sentence, from a line on."""
        n_borders = int(start.state or 0)
        sentence = _Sentence()
        for at, number, line in self.lines(start):
            kind = self.kind_of(line)
            if kind is LineKind.WORD:
                sentence.add(at, number, line)
            elif kind is not LineKind.COMMENT and sentence.n_bytes:
                yield self._row(sentence, n_borders)
                sentence = _Sentence()
            n_borders += kind is LineKind.BOUNDARY
        if sentence.n_bytes:
            yield self._row(sentence, n_borders)

    def _row(self, sentence: _Sentence, n_borders: int) -> Row:
        content: Content | Fault
        reason = sentence.excess()
        if reason is not None:
            content = Fault(reason, None, n_borders)
        else:
            try:
                content = self.content_of(sentence.lines)._replace(group=n_borders)
            except RowError as error:
                content = fault(error, b"".join(line for _, line in sentence.lines), n_borders)
        return Row(sentence.offset, sentence.row, str(n_borders), content)

    def fields_of(self, number: int, line: bytes, separator: str | None) -> list[str]:
        r"""Return the fields of a word line; `separator` is a tab, or None for any run of blanks.

        Raises:
            RowError: The line is no UTF-8; the reason names the line.
        """
        try:
            text = decode(linestreams.strip_line_end(line))
        except RowError as error:
            raise RowError(f"line {number}: {error}") from None
        return text.split(separator) if separator else _BLANKS.split(text.strip(" \t"))

    def label_place(self, names: Sequence[str], first: int) -> int | None:
        """Return the 0-based place in `names` of the column asked for with --label-column, by default the last.

        Args:
            names: The word columns.
            first: The 1-based number that the first of them has in the file.

        Raises:
            InputError: There is no such column.
        """
        wanted = self.config.label_column
        if wanted is None:
            return len(names) - 1 if names else None
        if wanted in names:
            return names.index(wanted)
        if wanted.isdecimal() and 0 <= int(wanted) - first < len(names):
            return int(wanted) - first
        numbers = f"{', '.join(names)} or {first} to {first + len(names) - 1}" if names else "none"
        raise InputError(f"no word column {wanted!r}; columns are {numbers}; pass --label-column", path=self.file.path)


def sentence_content(
    words: Sequence[str], names: Sequence[str], columns: Sequence[Sequence[str | None]], label: int | None
) -> Content:
    """Make the content of a sentence from its words and word columns; column `label` stands there twice."""
    annotations = dict(zip(names, columns, strict=True))
    if label is not None:
        annotations["label"] = columns[label]
    return Content(text=" ".join(words), words=tuple(words), annotations=annotations)


def column_names(names: Sequence[str], label: int | None) -> tuple[str, ...]:
    """Return the names of the word columns that `sentence_content` makes, in order."""
    return (*names, "label") if label is not None else tuple(names)
