"""What a reader makes of one row, and the checks of values that all readers share."""

from __future__ import annotations

import marshal
import re
import textwrap
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertfeat.config import CorpusFormat, ExtractConfig, flag
from bertfeat.corpus import linestreams
from bertfeat.corpus.linestreams import LongLine, open_stream, read_lines
from bertfeat.errors import InputError
from bertfeat.records import DocId, InputFile

_SURROGATE = re.compile("[\ud800-\udfff]")
INT64 = range(-(2**63), 2**63)
_NOTHING: Mapping[str, Any] = {}
_COLUMN_SETTINGS = ("text_column", "text_pair_column", "id_column", "document_column", "label_column")


class RowError(Exception):
    """A row cannot be read; the message is the reason that its bad row will carry."""


class Content(NamedTuple):
    """The content of one good row; the fields are those of `Document`."""

    text: str
    text_pair: str | None = None
    words: tuple[str, ...] | None = None
    doc_id: DocId | None = None
    group: DocId | None = None
    kept: Mapping[str, Any] = _NOTHING
    annotations: Mapping[str, Sequence[str | None]] = _NOTHING


class Fault(NamedTuple):
    """Why a row cannot be read, its bytes where the format has them, and its group where that is known."""

    reason: str
    raw: bytes | None
    group: DocId | None = None


class Start(NamedTuple):
    """Where reading starts in a file, in the units of `FileSlice`."""

    offset: int
    row: int
    state: str | None = None


class Row(NamedTuple):
    """One row of a file: where it starts (`FileSlice` says in which units) and what it holds."""

    offset: int
    row: int
    state: str | None
    content: Content | Fault


class Reader(ABC):
    """A corpus format; an instance is an open file of the corpus.

    Attributes:
        format: The format that it reads.
        endings: The file endings that name it.
        has_columns: Rows are records, of which the settings name columns.
        has_lists: Documents may be given as lists of words, with a label for each.
        has_documents: Rows say which document they belong to, without a column for it.
        has_pairs: A text may hold two, with a sign between them.
        has_words: Documents are always given as words.
        is_compressed: The format has a compression of its own; `.gz` or `.zst` around it is refused.
        start: Where the first row starts; a header comes before it.
        annotations: The names of the word columns; None in a file that has no words to tell them from.
        kept_types: The Arrow types of the kept columns where the file declares them; None where each row shows them.
        kept_seen: The kept columns that were met in rows so far, where the file declares none.
    """

    format: ClassVar[CorpusFormat]
    endings: ClassVar[tuple[str, ...]]
    has_columns: ClassVar[bool] = False
    has_lists: ClassVar[bool] = False
    has_documents: ClassVar[bool] = False
    has_pairs: ClassVar[bool] = False
    has_words: ClassVar[bool] = False
    is_compressed: ClassVar[bool] = False

    start: Start = Start(0, 1)
    annotations: tuple[str, ...] | None = ()
    kept_types: Mapping[str, Any] | None = _NOTHING
    kept_seen: set[str]

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        self.file = file
        self.config = config
        self.kept_seen = set()

    @abstractmethod
    def rows(self, start: Start) -> Iterator[Row]:
        """Yield the rows from `start` on, where some row starts."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class TextReader(Reader):
    """An open file of lines."""

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        self._stream = open_stream(file)

    def lines(self, start: Start) -> Iterator[tuple[int, int, bytes]]:
        """Yield (byte offset, line number, line with its end) from a line on."""
        return read_lines(self._stream, start.offset, start.row)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def size_of(line: bytes) -> int:
    """Return the bytes of a line, a `LongLine` too."""
    return line.n_bytes if isinstance(line, LongLine) else len(line)


def fault(error: RowError, raw: bytes, group: DocId | None = None) -> Fault:
    """Return why a row cannot be read, with its bytes unless there are too many."""
    return Fault(str(error), None if isinstance(raw, LongLine) else raw, group)


def decode(raw: bytes) -> str:
    """Return the text of UTF-8 bytes.

    Raises:
        RowError: The line is too long, or a byte is no UTF-8; the reason names it and its 0-based position.
    """
    if isinstance(raw, LongLine):
        raise RowError(linestreams.too_long(raw.n_bytes))
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RowError(
            f"byte 0x{raw[error.start]:02x} at position {error.start} is no UTF-8; convert the file to UTF-8"
        ) from None


def clean(text: str) -> str:
    r"""Replace lone surrogates, which JSON can escape but UTF-8 cannot hold, by U+FFFD, one for one.

    Example:
        >>> clean("a\ud800b")
        'a\ufffdb'
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def used_columns(config: ExtractConfig) -> tuple[str, ...]:
    """Return the columns of tabular input that the settings give a role beside being kept, each once."""
    named = [getattr(config, setting) for setting in _COLUMN_SETTINGS]
    return tuple(dict.fromkeys(name for name in named if name is not None))


def needed_columns(config: ExtractConfig) -> tuple[str, ...]:
    """Return the columns of tabular input that are read, each once."""
    return tuple(dict.fromkeys(used_columns(config) + config.keep_columns))


def check_columns(path: str, header: Sequence[str], config: ExtractConfig) -> None:
    """Check that a file's header names each needed column once.

    Raises:
        InputError: A column is missing or stands there twice.
    """
    for name in needed_columns(config):
        count = header.count(name)
        if count == 0:
            raise InputError(missing_column(name, header, config), path=path)
        if count > 1:
            raise InputError(f"column {name!r} stands {count} times in the header; rename all but one", path=path)


def missing_column(name: str, columns: Iterable[str], config: ExtractConfig) -> str:
    """Return the reason for a column that is not there: its name, the columns there are, and the flag to pass."""
    # A file without a header gives its first row for one.
    names = [textwrap.shorten(name, 40, placeholder="...") for name in columns]
    there = ", ".join(names[:20] + ["..."] * (len(names) > 20)) or "none"
    setting = next((s for s in reversed(_COLUMN_SETTINGS) if getattr(config, s) == name), "keep_columns")
    return f"no column {name!r}; columns are {there}; pass {flag(setting)}"


def content_of(record: Mapping[str, Any], config: ExtractConfig) -> Content:
    """Make the content of a tabular row from its columns; `record` has all that are needed.

    Raises:
        RowError: A value is null or of a type that cannot stand there; the reason names column and value.
    """
    column = config.text_column
    words = _words(column, record[column]) if config.is_split_into_words else None
    pair = record[config.text_pair_column] if config.text_pair_column else None
    return Content(
        text=_text(column, record[column]) if words is None else " ".join(words),
        text_pair=None if pair is None else _text(str(config.text_pair_column), pair),
        words=words,
        doc_id=_identifier(config.id_column, record[config.id_column]) if config.id_column else None,
        group=_group(config.document_column, record[config.document_column]) if config.document_column else None,
        kept={name: _kept(record[name]) for name in config.keep_columns} if config.keep_columns else _NOTHING,
        annotations=_NOTHING if words is None else _labels(record, config.label_column, len(words)),
    )


def shown(value: object) -> str:
    """Return a value as a message shows it, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _text(column: str, value: object) -> str:
    if isinstance(value, str):
        return clean(value)
    if value is None:
        raise RowError(f"column {column!r} is null; give it a text, if only an empty one")
    hint = "; pass --is-split-into-words for lists of words" if isinstance(value, list) else ""
    raise RowError(f"column {column!r} holds {shown(value)}, which is no text{hint}")


def _words(column: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        what = "null" if value is None else shown(value)
        raise RowError(
            f"column {column!r} holds {what}, which is no list of words; drop --is-split-into-words for texts"
        )
    for position, word in enumerate(value):
        if not isinstance(word, str):
            raise RowError(f"column {column!r} holds {shown(word)} at position {position}, which is no word")
    return tuple(map(clean, value))


def _identifier(column: str, value: object) -> DocId:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int) and not isinstance(value, bool) and value in INT64:
        return value
    what = "null" if value is None else shown(value)
    raise RowError(f"id column {column!r} holds {what}; an id is a string or a 64-bit integer")


def _group(column: str, value: object) -> DocId | None:
    if value is None:
        return None
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise RowError(f"document column {column!r} holds {shown(value)}; a document's name is a string or an integer")


def _kept(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


def _labels(record: Mapping[str, Any], column: str | None, n_words: int) -> Mapping[str, Sequence[str | None]]:
    if column is None:
        return _NOTHING
    value = record[column]
    if not isinstance(value, list):
        raise RowError(f"label column {column!r} holds {shown(value)}, which is no list with a label for each word")
    if len(value) != n_words:
        raise RowError(f"label column {column!r} has {len(value)} labels for {n_words} words; give each word one")
    return {"label": [None if label is None else clean(str(label)) for label in value]}


def n_values(raw: bytes, marks: bytes) -> int:
    """Return how many of the bytes `marks` a row has outside double quotes, or anywhere if these are few.

    Each value of a parsed row takes up to a hundred bytes of memory, however short it is: count them before parsing.
    """
    n_marks = sum(map(raw.count, marks))
    if n_marks <= linestreams.MAX_ROW_VALUES:
        return n_marks
    n_marks = is_quoted = 0
    for start in range(0, len(raw), linestreams.BLOCK_BYTES):
        block = np.frombuffer(raw, np.uint8, min(linestreams.BLOCK_BYTES, len(raw) - start), start)
        inside = (np.cumsum(block == ord('"')) + is_quoted) % 2
        n_marks += int(np.count_nonzero(np.isin(block, list(marks)) & (inside == 0)))
        is_quoted = int(inside[-1])
    return n_marks


# Blank rows at the end of a file may be millions: beyond these, they are held compressed.
_HELD_ROWS = 1000
_HELD_BYTES = 1 << 20


def without_blank_tail(rows: Iterable[Row]) -> Iterator[Row]:
    """Drop the blank lines that end a file; blank lines before a row stay the bad rows that they are."""
    held = _HeldRows()
    for row in rows:
        content = row.content
        if isinstance(content, Fault) and content.raw is not None and content.raw.isspace():
            held.add(row, content.reason, content.raw)
            continue
        if held.n_rows:
            yield from held.release()
            held = _HeldRows()
        yield row


class _HeldRows:
    """Bad rows in order, most of them as compressed bytes; their places as differences, which compress best."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._rows: list[tuple[int, int, str, bytes]] = []
        self._n_bytes = self._offset = self._row = 0
        self.n_rows = 0

    def add(self, row: Row, reason: str, raw: bytes) -> None:
        """Hold one more row."""
        self._rows.append((row.offset - self._offset, row.row - self._row, reason, raw))
        self._offset, self._row = row.offset, row.row
        self._n_bytes += len(raw)
        self.n_rows += 1
        if len(self._rows) >= _HELD_ROWS or self._n_bytes >= _HELD_BYTES:
            self._packed.append(zlib.compress(marshal.dumps(self._rows)))
            self._rows, self._n_bytes = [], 0

    def release(self) -> Iterator[Row]:
        """Yield the rows."""
        offset = row = 0
        for packed in (*self._packed, None):
            rows = self._rows if packed is None else marshal.loads(zlib.decompress(packed))
            for offset_step, row_step, reason, raw in rows:
                offset, row = offset + offset_step, row + row_step
                yield Row(offset, row, None, Fault(reason, raw))
