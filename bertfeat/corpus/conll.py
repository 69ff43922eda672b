"""Readers of CoNLL columns and of CoNLL-U: one word per line, a run of word lines per sentence."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Any

import pyarrow as pa

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Content, Row, RowError, Start, TextReader, clean, decode, tried
from bertfeat.errors import InputError
from bertfeat.records import InputFile

# https://universaldependencies.org/format.html; the word columns are those after ID and FORM.
_CONLLU_COLUMNS = ("lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_ID_COMMENT = re.compile(rb"#\s*(sent_id|newdoc id)\s*=\s*(.*)")
_NEW_DOCUMENT = b"# newdoc"
_DOCSTART = b"-DOCSTART-"
_COMMENT = b"# "
_SPACES = b" \t\r\n"
# str.split() without an argument would also split at no-break spaces and U+2028, which are part of words.
_GAPS = re.compile("[ \t]+")
# The head of a file shows its columns, so that reading a slice does not need the lines before it.
_HEAD_LINES = 2000

# A word line with its 1-based number.
NumberedLine = tuple[int, bytes]


class LineKind(Enum):
    """A line is a word, the end of a sentence, the border of a document, or a comment."""

    WORD = auto()
    BLANK = auto()
    BOUNDARY = auto()
    COMMENT = auto()


class Heading:
    """What the lines before a sentence say of it.

    The number of document borders so far and, if there are columns for them, the comments `# sent_id` and
    `# newdoc id`; those of a document hold to its end. The text form is the state of a row, with which reading starts
    there.
    """

    def __init__(self, state: str | None, columns: Sequence[str]) -> None:
        self._sentence: str | None = None
        self._document: str | None = None
        # Without ids, the state is the number alone.
        found = json.loads(state or "0")
        self.n_borders, self._sentence, self._document = found if isinstance(found, list) else (found, None, None)
        self._columns = columns

    def note(self, line: bytes, kind: LineKind) -> None:
        """Take a line that is not a word."""
        if kind is LineKind.BOUNDARY:
            self.n_borders, self._document = self.n_borders + 1, None
        if self._columns and (found := _ID_COMMENT.fullmatch(line.rstrip())):
            value = found[2].decode(errors="surrogateescape")
            if found[1] == b"sent_id":
                self._sentence = value
            else:
                self._document = value

    def end_sentence(self) -> None:
        """Forget the id of the sentence that ends here."""
        self._sentence = None

    def state(self) -> str:
        """Return the text form."""
        ids = [self._sentence, self._document]
        return str(self.n_borders) if ids == [None, None] else json.dumps([self.n_borders, *ids])

    def columns(self) -> Mapping[str, str | None]:
        """Return the columns of the sentence."""
        return dict(zip(self._columns, (self._sentence, self._document), strict=False))


class SentenceReader(TextReader):
    """Reads files of one word per line. The state of a row is the number of document borders before it."""

    has_documents = has_lists = has_words = True
    # The word columns, the 0-based place of the first of them, which comes after the word, and the one of the labels.
    names: tuple[str, ...]
    first: int
    label: str | None

    def set_columns(self, names: Sequence[str], first: int) -> None:
        """Set the word columns; the labels are in the last one unless settings name another."""
        self.names, self.first = tuple(names), first
        self.label = names[-1] if names else None
        self.annotations = (*self.names, *(() if self.label is None else ("label",)), *self.own_columns)

    def use(self, config: ExtractConfig) -> None:
        """Check that there is the column of labels."""
        if config.label_column is not None and self.annotations is not None:
            self.label = self._label_column(config.label_column)

    def _label_column(self, wanted: str) -> str:
        names, number = self.names, self.first + 1
        if wanted in names:
            return wanted
        if wanted.isdecimal() and 0 <= int(wanted) - number < len(names):
            return names[int(wanted) - number]
        last = number + len(names) - 1
        there = f"columns are {', '.join(names)} or {number} to {last}" if names else "the file has none"
        raise InputError(f"no word column {wanted!r}; {there}; pass `label_column`", path=self.file.path)

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
        heading = Heading(start.state, self.own_columns)
        lines: list[NumberedLine] = []
        begun: tuple[int, int, str, int, Mapping[str, str | None]] | None = None
        for at, number, line in self.lines(start):
            kind = self.kind_of(line)
            if kind is LineKind.WORD:
                begun = begun or (at, number, heading.state(), heading.n_borders, heading.columns())
                lines.append((number, line))
                continue
            if kind is not LineKind.COMMENT and begun:
                yield self._row(*begun, lines)
                begun, lines = None, []
                heading.end_sentence()
            heading.note(line, kind)
        if begun:
            yield self._row(*begun, lines)

    def _row(
        self,
        at: int,
        number: int,
        state: str,
        group: int,
        own: Mapping[str, str | None],
        lines: Sequence[NumberedLine],
    ) -> Row:
        values = tried(lambda lines: self._values(lines, own), lines)
        return Row(at, number, state, values, b"".join(line for _, line in lines), group)

    def _values(self, lines: Sequence[NumberedLine], own: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Return `words`, `own` (the columns of the sentence), and the columns of its words."""
        table = self.table_of(lines)
        words = tuple(fields[self.first - 1] or "" for fields in table)
        columns: dict[str, Sequence[str | None]]
        columns = {name: [fields[at] for fields in table] for at, name in enumerate(self.names, self.first)}
        if self.label is not None:
            columns["label"] = columns[self.label]
        for name, value in own.items():
            if value is not None and clean(value) != value:
                raise RowError(f"the comment with the {name} before it is not UTF-8; convert the file to UTF-8")
            columns[name] = [value] * len(words)
        return {"words": words, "own": own, "columns": columns}

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the content of a sentence."""
        words, own, name = values["words"], values["own"], config.id_column
        if name is not None and own[name] is None:
            raise RowError(f"the sentence has no {name}; write '# {name} = ...' before it, or leave out `id_column`")
        doc_id = None if name is None else own[name]
        return Content(" ".join(words), None, words, doc_id, None, own, values["columns"])

    def fields_of(self, number: int, line: bytes, separator: str | None) -> list[str]:
        r"""Return the fields of a word line; `separator` is a tab, or None for any run of spaces and tabs.

        Raises:
            RowError: The line is not UTF-8; the reason names the line.
        """
        try:
            text = decode(linestreams.strip_line_end(line))
        except RowError as error:
            raise RowError(f"line {number}: {error}") from None
        return text.split(separator) if separator else _GAPS.split(text.strip(" \t"))


class ConllReader(SentenceReader):
    """Reads CoNLL columns: one word per line with its tags, and an empty line between sentences.

    The word columns are `column_N` by their 1-based number in the file, and `label`.
    """

    format = CorpusFormat.CONLL
    endings = (".conll", ".iob", ".iob2", ".bio")

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self.annotations = None
        head = list(_head(self.lines(self.start)))
        word_lines = [line for line in head if line]
        if not word_lines:
            return
        # A tab, or None for any run of spaces.
        self._separator = "\t" if b"\t" in word_lines[0] else None
        self._n_columns = self._count_columns(word_lines[0])
        # The first column counts the words of each sentence from 1, and the word is the second.
        self._is_indexed = self._n_columns > 1 and _counts_words(head)
        if self._is_indexed:
            # Any line may lack columns at its end.
            self._n_columns = max(map(self._count_columns, word_lines))
        first = 2 if self._is_indexed else 1
        self.set_columns([f"column_{place + 1}" for place in range(first, self._n_columns)], first)

    def _count_columns(self, line: bytes) -> int:
        return line.count(b"\t") + 1 if self._separator else len(line.split())

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per sentence, from a line on."""
        return iter(()) if self.annotations is None else super().rows(start)

    def kind_of(self, line: bytes) -> LineKind:
        """Return the kind of a line; `# ` may start a comment, or be a hash sign with its tags."""
        if not line.strip(_SPACES):
            return LineKind.BLANK
        if line.startswith(_DOCSTART):
            return LineKind.BOUNDARY
        if line.startswith(_COMMENT) and self._is_comment(line):
            return LineKind.BOUNDARY if line.startswith(_NEW_DOCUMENT) else LineKind.COMMENT
        return LineKind.WORD

    def _is_comment(self, line: bytes) -> bool:
        return self._is_indexed or (self._n_columns > 1 and self._count_columns(line) != self._n_columns)

    def table_of(self, lines: Sequence[NumberedLine]) -> list[list[str | None]]:
        """Return the fields of each word."""
        table = [self._fields(number, line) for number, line in lines]
        if self._is_indexed:
            for place, fields in enumerate(table, start=1):
                if fields[0] != str(place):
                    number = lines[place - 1][0]
                    raise RowError(f"line {number} starts with {fields[0]!r} where word {place} is counted")
        return table

    def _fields(self, number: int, line: bytes) -> list[str | None]:
        fields: list[str | None] = [*self.fields_of(number, line, self._separator)]
        n_missing = self._n_columns - len(fields)
        if n_missing == 0:
            return fields
        # Files that count their words leave out annotators' notes at the end of a line (Universal NER), but never a
        # tag that is asked for.
        if not self._is_indexed or n_missing < 0 or len(fields) < self.first:
            raise RowError(f"line {number} has {len(fields)} columns where the file has {self._n_columns}")
        if self.label is not None and len(fields) <= self.first + self.names.index(self.label):
            raise RowError(f"line {number} has {len(fields)} columns, and no label there; pass another `label_column`")
        return fields + [None] * n_missing


class ConlluReader(SentenceReader):
    """Reads .conllu; the words are the syntactic words, without multiword ranges (`3-4`) and empty nodes (`5.1`).

    The comments `# sent_id` and `# newdoc id` become the columns `sent_id` and `newdoc_id`, which may be null.
    """

    format = CorpusFormat.CONLLU
    endings = (".conllu",)
    own_columns = ("sent_id", "newdoc_id")

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self.set_columns(_CONLLU_COLUMNS, 2)
        self.types = dict.fromkeys(self.own_columns, pa.string())

    def kind_of(self, line: bytes) -> LineKind:
        """Return the kind of a line."""
        if not line.strip():
            return LineKind.BLANK
        if not line.startswith(b"#"):
            return LineKind.WORD
        return LineKind.BOUNDARY if line.startswith(_NEW_DOCUMENT) else LineKind.COMMENT

    def table_of(self, lines: Sequence[NumberedLine]) -> list[list[str]]:
        """Return the fields of each word; `_` stays as it is given."""
        n_columns = 2 + len(_CONLLU_COLUMNS)
        table = []
        for number, line in lines:
            fields = self.fields_of(number, line, "\t")
            if len(fields) != n_columns:
                raise RowError(f"line {number} has {len(fields)} columns where CoNLL-U has {n_columns}, tab-separated")
            if fields[0].isdecimal():
                table.append(fields)
            elif not fields[0].replace("-", "").replace(".", "").isdecimal():
                raise RowError(f"line {number} starts with {fields[0]!r}, which is not a word id")
        return table


def _head(lines: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes]:
    """Yield the first word lines without their end, and an empty line for each border between sentences."""
    for _, _, line in islice((found for found in lines if not found[2].startswith(_COMMENT)), _HEAD_LINES):
        is_word = line.strip(_SPACES) and not line.startswith(_DOCSTART)
        yield line.rstrip(b"\r\n") if is_word else b""


def _counts_words(lines: Iterable[bytes]) -> bool:
    """Return whether the first column is 1, 2, ... in each sentence, and more than 1 in some."""
    count = most = 0
    for line in lines:
        count = count + 1 if line else 0
        if line and line.split(None, 1)[0] != b"%d" % count:
            return False
        most = max(most, count)
    return most > 1
