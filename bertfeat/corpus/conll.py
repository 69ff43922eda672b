"""Readers of CoNLL columns and of CoNLL-U: one word per line, a run of word lines per sentence."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import pyarrow as pa

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import BEGIN, WORD_SETTINGS, Content, Row, RowError, TextReader, clean, decode, tried
from bertfeat.corpus.line_streams import strip_line_end
from bertfeat.errors import InputError
from bertfeat.records import FileSlice, InputFile

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


class SentenceReader(TextReader):
    """Reads files of one word per line.

    The state of a row is the number of document borders before it or, if there are columns for ids, a JSON list of
    that number and the comments `# sent_id` and `# newdoc id` that hold for it.
    """

    has_documents = has_words = True
    settings = WORD_SETTINGS
    # The word columns, the 0-based place of the first of them, which comes after the word, and the one of the labels.
    names: tuple[str, ...] = ()
    first: int
    label: str | None

    def set_columns(self, names: Sequence[str], first: int) -> None:
        """Set the word columns; the labels are in the last one unless settings name another."""
        self.names, self.first = tuple(names), first
        self.label = names[-1] if names else None
        self.annotations = (*self.names, *(() if self.label is None else ("label",)), *self.own_columns)

    def use(self, config: ExtractConfig) -> None:
        """Check that there is the column of labels."""
        wanted = config.label_column
        if wanted is None or self.annotations is None:
            return
        number = self.first + 1
        if wanted.isdecimal() and 0 <= int(wanted) - number < len(self.names):
            wanted = self.names[int(wanted) - number]
        if wanted not in self.names:
            last = number + len(self.names) - 1
            there = f"columns are {', '.join(self.names)} or {number} to {last}" if self.names else "the file has none"
            raise InputError(f"no word column {wanted!r}; {there}; pass `label_column`", path=self.file.path)
        self.label = wanted

    @abstractmethod
    def table_of(self, lines: Sequence[NumberedLine]) -> Sequence[Sequence[str | None]]:
        """Return the fields of each word of a sentence."""

    def is_comment(self, line: bytes) -> bool:
        """Return whether a line is a comment."""
        return line.startswith(b"#")

    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield one row per sentence, from a line on."""
        found = json.loads(start.state or "0")
        n_borders, sent_id, newdoc_id = found if isinstance(found, list) else (found, None, None)
        lines: list[NumberedLine] = []
        begun: tuple[int, int, tuple[str | None, ...]] | None = None
        for at, number, line in self.lines(start):
            is_comment = self.is_comment(line)
            is_border = line.startswith(_NEW_DOCUMENT if is_comment else _DOCSTART)
            if not is_comment and not is_border and line.strip(_SPACES):
                begun = begun or (at, n_borders, (sent_id, newdoc_id))
                lines.append((number, line))
                continue
            if begun and (is_border or not is_comment):
                yield self._row(*begun, lines)
                begun, lines, sent_id = None, [], None
            if is_border:
                n_borders, newdoc_id = n_borders + 1, None
            if self.own_columns and (comment := _ID_COMMENT.fullmatch(line.rstrip())):
                value = comment[2].decode(errors="surrogateescape")
                if comment[1] == b"sent_id":
                    sent_id = value
                else:
                    newdoc_id = value
        if begun:
            yield self._row(*begun, lines)

    def _row(self, at: int, n_borders: int, ids: tuple[str | None, ...], lines: Sequence[NumberedLine]) -> Row:
        state = str(n_borders) if ids == (None, None) else json.dumps([n_borders, *ids])
        own = dict(zip(self.own_columns, ids, strict=False))
        values = tried(lambda lines: self._values(lines, own), lines)
        return Row(at, lines[0][0], state, values, b"".join([line for _, line in lines]), n_borders)

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
        doc_id = None if name is None else own[name]
        if name is not None and doc_id is None:
            raise RowError(f"the sentence has no {name}; write '# {name} = ...' before it, or leave out `id_column`")
        return Content(" ".join(words), None, words, doc_id, None, own, values["columns"])


class ConllReader(SentenceReader):
    """Reads CoNLL columns: one word per line with its tags, and an empty line between sentences.

    The word columns are `column_N` by their 1-based number in the file, and `label`.
    """

    format = CorpusFormat.CONLL
    endings = (".conll", ".iob", ".iob2", ".bio")

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self.annotations = None
        head = list(_head(self.lines(BEGIN)))
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

    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield one row per sentence, from a line on."""
        return iter(()) if self.annotations is None else super().rows(start)

    def is_comment(self, line: bytes) -> bool:
        """Return whether a line is a comment; a hash sign with all its tags is a word."""
        if not line.startswith(_COMMENT):
            return False
        return self._is_indexed or (self._n_columns > 1 and self._count_columns(line) != self._n_columns)

    def table_of(self, lines: Sequence[NumberedLine]) -> list[list[str | None]]:
        """Return the fields of each word."""
        least = n_columns = self._n_columns
        if self._is_indexed and self.label is not None:
            # Files that count their words leave out annotators' notes at the end of a line (Universal NER), but never a
            # tag that is asked for.
            least = self.first + self.names.index(self.label) + 1
        table: list[list[str | None]] = []
        for number, line in lines:
            fields = _fields_of(number, line, self._separator)
            if not least <= len(fields) <= n_columns:
                raise RowError(f"line {number} has {len(fields)} columns where the file has {n_columns}")
            table.append([*fields, *[None] * (n_columns - len(fields))])
        return table


class ConlluReader(SentenceReader):
    """Reads .conllu; the words are the syntactic words, without multiword ranges (`3-4`) and empty nodes (`5.1`).

    The comments `# sent_id` and `# newdoc id` become the columns `sent_id` and `newdoc_id`, which may be null.
    """

    format = CorpusFormat.CONLLU
    endings = (".conllu",)
    own_columns = ("sent_id", "newdoc_id")
    settings = (*WORD_SETTINGS, "id_column")

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self.set_columns(_CONLLU_COLUMNS, 2)
        self.types = dict.fromkeys(self.own_columns, pa.string())

    def use(self, config: ExtractConfig) -> None:
        """Check that there is the column of labels, and that an id is one of a sentence."""
        if config.id_column not in (None, "sent_id"):
            raise InputError(f"`id_column` {config.id_column!r} must be sent_id", path=self.file.path)
        super().use(config)

    def table_of(self, lines: Sequence[NumberedLine]) -> list[list[str]]:
        """Return the fields of each word; `_` stays as it is given."""
        n_columns = 2 + len(_CONLLU_COLUMNS)
        table = []
        for number, line in lines:
            fields = _fields_of(number, line, "\t")
            if len(fields) != n_columns:
                raise RowError(f"line {number} has {len(fields)} columns where CoNLL-U has {n_columns}, tab-separated")
            if fields[0].isdecimal():
                table.append(fields)
            elif not fields[0].replace("-", "").replace(".", "").isdecimal():
                raise RowError(f"line {number} starts with {fields[0]!r}, which is not a word id")
        return table


def _fields_of(number: int, line: bytes, separator: str | None) -> list[str]:
    """Return the fields of a word line; `separator` is a tab, or None for any run of spaces and tabs."""
    try:
        text = decode(strip_line_end(line))
    except RowError as error:
        raise RowError(f"line {number}: {error}") from None
    return text.split(separator) if separator else _GAPS.split(text.strip(" \t"))


def _head(lines: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes]:
    """Yield the first word lines without their end, and an empty line for each border between sentences."""
    for _, _, line in islice((found for found in lines if not found[2].startswith(_COMMENT)), _HEAD_LINES):
        is_word = line.strip(_SPACES) and not line.startswith(_DOCSTART)
        yield line.rstrip(b"\r\n") if is_word else b""


def _counts_words(head: Iterable[bytes]) -> bool:
    """Return whether the first column is 1, 2, ... in each sentence, and more than 1 in some."""
    sentences = [[line.split(None, 1)[0] for line in lines] for is_word, lines in groupby(head, bool) if is_word]
    counts = [[b"%d" % number for number in range(1, len(words) + 1)] for words in sentences]
    return sentences == counts and max(map(len, sentences)) > 1
