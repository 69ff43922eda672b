"""Base of the CoNLL readers: one word per line, a run of word lines per sentence, sentences in documents."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto

from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Content, Fault, Row, RowError, Start, TextReader, clean, decode, fault, size_of
from bertfeat.errors import InputError

NEW_DOCUMENT = b"# newdoc"
# str.split() without an argument would also split at no-break spaces and U+2028, which are part of words.
_SPACES = re.compile("[ \t]+")

# A word line with its 1-based number.
NumberedLine = tuple[int, bytes]


class LineKind(Enum):
    """A line is a word, the end of a sentence, the border of a document, or a comment."""

    WORD = auto()
    BLANK = auto()
    BOUNDARY = auto()
    COMMENT = auto()


class Heading:
    """What the lines before a sentence say of it: the number of document borders so far.

    Its text form is the state of a row, with which reading starts there.
    """

    def __init__(self, state: str | None) -> None:
        self.n_borders = int(state or 0)

    def note(self, line: bytes, kind: LineKind) -> None:  # noqa: ARG002
        """Take a line that is not a word."""
        self.n_borders += kind is LineKind.BOUNDARY

    def end_sentence(self) -> None:
        """Forget what only the sentence that ends here has."""

    def state(self) -> str:
        """Return the text form."""
        return str(self.n_borders)

    def columns(self) -> Mapping[str, str | None]:
        """Return the columns that the lines give the sentence."""
        return {}


class _Sentence:
    """The place and the heading of a sentence, and its word lines unless they are too many."""

    def __init__(self) -> None:
        self.offset = self.row = self.n_bytes = self._n_values = 0
        self.group, self.state = 0, ""
        self.columns: Mapping[str, str | None] = {}
        self.lines: list[NumberedLine] = []

    def begin(self, offset: int, number: int, heading: Heading) -> None:
        self.offset, self.row = offset, number
        self.group, self.state, self.columns = heading.n_borders, heading.state(), heading.columns()

    def add(self, number: int, line: bytes) -> None:
        self.n_bytes += size_of(line)
        self._n_values += 1 + line.count(b" ") + line.count(b"\t")
        self.lines.append((number, line))
        if self.excess() is not None:
            self.lines.clear()

    def excess(self) -> str | None:
        """Return the reason if the sentence is too large to be read."""
        if self.n_bytes > linestreams.MAX_ROW_BYTES:
            return linestreams.too_long(self.n_bytes)
        return linestreams.too_many("words and tags") if self._n_values > linestreams.MAX_ROW_VALUES else None


class SentenceReader(TextReader):
    """Reads files of one word per line. The state of a row is the number of document borders before it."""

    has_documents = has_lists = has_words = True
    # The word columns, the 0-based place of the first of them, which comes after the word, and the one of the labels.
    names: tuple[str, ...]
    first: int
    label: str | None

    def set_columns(self, names: Sequence[str], first: int) -> None:
        """Set the word columns, and the one asked for with `label_column`, by default the last.

        Raises:
            InputError: There is no such column.
        """
        self.names, self.first = tuple(names), first
        self.label = self._label_column()
        self.annotations = (*self.names, *(() if self.label is None else ("label",)), *self.own_columns)

    def _label_column(self) -> str | None:
        names, number, wanted = self.names, self.first + 1, self.config.label_column
        if wanted is None:
            return names[-1] if names else None
        if wanted in names:
            return wanted
        if wanted.isdecimal() and 0 <= int(wanted) - number < len(names):
            return names[int(wanted) - number]
        last = number + len(names) - 1
        there = f"columns are {', '.join(names)} or {number} to {last}" if names else "the file has none"
        raise InputError(f"no word column {wanted!r}; {there}; pass `label_column`", path=self.file.path)

    def heading(self, state: str | None) -> Heading:
        """Return the heading of a row with this state."""
        return Heading(state)

    @abstractmethod
    def kind_of(self, line: bytes) -> LineKind:
        """Return the kind of a line."""

    @abstractmethod
    def table_of(self, lines: Sequence[NumberedLine]) -> Sequence[Sequence[str | None]]:
        """Return the fields of each word of a sentence.

        Raises:
            RowError: A line has the wrong number of columns, or bytes that are not UTF-8.
        """

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per sentence, from a line on."""
        heading = self.heading(start.state)
        sentence = _Sentence()
        for at, number, line in self.lines(start):
            kind = self.kind_of(line)
            if kind is LineKind.WORD:
                if not sentence.n_bytes:
                    sentence.begin(at, number, heading)
                sentence.add(number, line)
                continue
            if kind is not LineKind.COMMENT and sentence.n_bytes:
                yield self._row(sentence)
                sentence = _Sentence()
                heading.end_sentence()
            heading.note(line, kind)
        if sentence.n_bytes:
            yield self._row(sentence)

    def _row(self, sentence: _Sentence) -> Row:
        content: Content | Fault
        reason = sentence.excess()
        if reason is not None:
            content = Fault(reason, None, sentence.group)
        else:
            try:
                content = self._content(sentence)
            except RowError as error:
                content = fault(error, b"".join(line for _, line in sentence.lines), sentence.group)
        return Row(sentence.offset, sentence.row, sentence.state, content)

    def _content(self, sentence: _Sentence) -> Content:
        table = self.table_of(sentence.lines)
        words = tuple(fields[self.first - 1] or "" for fields in table)
        columns: dict[str, Sequence[str | None]]
        columns = {name: [fields[at] for fields in table] for at, name in enumerate(self.names, self.first)}
        if self.label is not None:
            columns["label"] = columns[self.label]
        for name, value in sentence.columns.items():
            if value is not None and clean(value) != value:
                raise RowError(f"the comment with the {name} before it is not UTF-8; convert the file to UTF-8")
            columns[name] = [value] * len(words)
        doc_id = self._doc_id(sentence.columns)
        return Content(" ".join(words), None, words, doc_id, sentence.group, sentence.columns, columns)

    def _doc_id(self, columns: Mapping[str, str | None]) -> str | None:
        name = self.config.id_column
        if name is None:
            return None
        if columns[name] is None:
            raise RowError(f"the sentence has no {name}; write '# {name} = ...' before it, or leave out `id_column`")
        return columns[name]

    def fields_of(self, number: int, line: bytes, separator: str | None) -> list[str]:
        r"""Return the fields of a word line; `separator` is a tab, or None for any run of spaces and tabs.

        Raises:
            RowError: The line is not UTF-8; the reason names the line.
        """
        try:
            text = decode(linestreams.strip_line_end(line))
        except RowError as error:
            raise RowError(f"line {number}: {error}") from None
        return text.split(separator) if separator else _SPACES.split(text.strip(" \t"))
