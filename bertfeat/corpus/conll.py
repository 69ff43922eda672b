"""Readers of CoNLL columns and of CoNLL-U."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Row, RowError, Start
from bertfeat.corpus.sentences import NEW_DOCUMENT, Heading, LineKind, NumberedLine, SentenceReader
from bertfeat.records import InputFile

# https://universaldependencies.org/format.html; the word columns are those after ID and FORM.
_CONLLU_COLUMNS = ("lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_ID_COMMENT = re.compile(rb"#\s*(sent_id|newdoc id)\s*=\s*(.*)")
_DOCSTART = b"-DOCSTART-"
_COMMENT = b"# "
_SPACES = b" \t\r\n"
# The head of a file shows its columns, so that reading a slice does not need the lines before it.
_HEAD_LINES = 2000


class ConllReader(SentenceReader):
    """Reads CoNLL columns: one word per line with its tags, and an empty line between sentences.

    The word columns are `column_N` by their 1-based number in the file, and `label`.
    """

    format = CorpusFormat.CONLL
    endings = (".conll", ".iob", ".iob2", ".bio")

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
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
        return line.count(b"\t") + 1 if self._separator else len(line.split(None, linestreams.MAX_ROW_VALUES))

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
            return LineKind.BOUNDARY if line.startswith(NEW_DOCUMENT) else LineKind.COMMENT
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


class _SentenceIds(Heading):
    """The comments `# sent_id` and `# newdoc id` before a sentence; those of a document hold to its end."""

    def __init__(self, state: str | None) -> None:
        # Without ids, the state is the number alone.
        found = json.loads(state or "0")
        n_borders, *ids = found if isinstance(found, list) else [found, None, None]
        super().__init__(str(n_borders))
        self._sentence: str | None = ids[0]
        self._document: str | None = ids[1]

    def note(self, line: bytes, kind: LineKind) -> None:
        """Take a line that is not a word."""
        super().note(line, kind)
        if kind is LineKind.BOUNDARY:
            self._document = None
        if found := _ID_COMMENT.fullmatch(line.rstrip()):
            value = found[2].decode(errors="surrogateescape")
            if found[1] == b"sent_id":
                self._sentence = value
            else:
                self._document = value

    def end_sentence(self) -> None:
        """Forget the id of the sentence."""
        self._sentence = None

    def state(self) -> str:
        """Return the text form."""
        ids = [self._sentence, self._document]
        return super().state() if ids == [None, None] else json.dumps([self.n_borders, *ids])

    def columns(self) -> Mapping[str, str | None]:
        """Return the columns `sent_id` and `newdoc_id`."""
        return dict(zip(ConlluReader.own_columns, (self._sentence, self._document), strict=True))


class ConlluReader(SentenceReader):
    """Reads .conllu; the words are the syntactic words, without multiword ranges (`3-4`) and empty nodes (`5.1`).

    The comments `# sent_id` and `# newdoc id` become the columns `sent_id` and `newdoc_id`, which may be null.
    """

    format = CorpusFormat.CONLLU
    endings = (".conllu",)
    own_columns = ("sent_id", "newdoc_id")

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        self.set_columns(_CONLLU_COLUMNS, 2)
        self.kept_types = dict.fromkeys(self.own_columns, pa.string())

    def heading(self, state: str | None) -> Heading:
        """Return the heading of a row with this state."""
        return _SentenceIds(state)

    def kind_of(self, line: bytes) -> LineKind:
        """Return the kind of a line."""
        if not line.strip():
            return LineKind.BLANK
        if not line.startswith(b"#"):
            return LineKind.WORD
        return LineKind.BOUNDARY if line.startswith(NEW_DOCUMENT) else LineKind.COMMENT

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
    n_lines = n_bytes = 0
    for _, _, line in lines:
        if line.startswith(_COMMENT):
            continue
        is_word = line.strip(_SPACES) and not line.startswith(_DOCSTART)
        stripped = line.rstrip(b"\r\n") if is_word else b""
        n_lines, n_bytes = n_lines + 1, n_bytes + len(stripped)
        if n_lines > _HEAD_LINES or n_bytes > linestreams.MAX_ROW_BYTES:
            return
        yield stripped


def _counts_words(lines: Iterable[bytes]) -> bool:
    """Return whether the first column is 1, 2, ... in each sentence, and more than 1 in some."""
    count = most = 0
    for line in lines:
        count = count + 1 if line else 0
        if line and line.split(None, 1)[0] != b"%d" % count:
            return False
        most = max(most, count)
    return most > 1
