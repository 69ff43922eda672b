"""Content of one row, the base class of readers, and the checks of values that all readers share."""

from __future__ import annotations

import marshal
import re
import textwrap
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertfeat.config import CorpusFormat, ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.linestreams import LongLine, open_stream, read_lines
from bertfeat.errors import InputError, did_you_mean
from bertfeat.records import DocId, InputFile

_SURROGATE = re.compile("[\ud800-\udfff]")
INT64 = range(-(2**63), 2**63)
_NOTHING: Mapping[str, Any] = {}
_COLUMN_SETTINGS = ("text_column", "text_pair_column", "id_column", "document_column", "label_column")


class RowError(Exception):
    """A row cannot be read; the message becomes the reason of its bad row."""


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
    """The reason why a row cannot be read, its bytes if the format has them, and its group if that is known."""

    reason: str
    raw: bytes | None
    group: DocId | None = None


class Start(NamedTuple):
    """The place in a file where reading starts, in the units of `FileSlice`."""

    offset: int
    row: int
    state: str | None = None


class Row(NamedTuple):
    """One row of a file: its start, in the units of `FileSlice`, and its content."""

    offset: int
    row: int
    state: str | None
    content: Content | Fault


class Reader(ABC):
    """A corpus format; an instance is an open file of the corpus.

    Attributes:
        format: The format that it reads.
        endings: The file endings of the format.
        has_columns: Rows are records, and settings name their columns.
        has_delimiter: A character separates the columns, which a header names.
        has_lists: Documents may be given as lists of words, with a label for each.
        has_documents: Rows say which document they belong to, without a column for it.
        has_pairs: A line may hold two texts, with a separator.
        has_words: Documents are always given as words.
        own_columns: Columns that come from the format itself, without a setting; one of them may be the id.
        is_compressed: The format has a compression of its own; `.gz` or `.zst` around it is refused.
        start: The start of the first row, after a header.
        annotations: The names of the word columns; None in a file without words.
        kept_types: The Arrow types of the kept columns; None in a format that does not declare them.
        kept_seen: The kept columns found in rows so far, if the format does not declare types.
    """

    format: ClassVar[CorpusFormat]
    endings: ClassVar[tuple[str, ...]]
    has_columns: ClassVar[bool] = False
    has_delimiter: ClassVar[bool] = False
    has_lists: ClassVar[bool] = False
    has_documents: ClassVar[bool] = False
    has_pairs: ClassVar[bool] = False
    has_words: ClassVar[bool] = False
    own_columns: ClassVar[tuple[str, ...]] = ()
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
        """Yield the rows from `start` on, which is the start of a row."""

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

    def line_rows(self, start: Start, content_of_line: Callable[[bytes], Content]) -> Iterator[Row]:
        """Yield one row per line, from a line on; where the function raises `RowError`, the row is bad."""
        for at, number, raw in self.lines(start):
            content: Content | Fault
            try:
                content = content_of_line(raw)
            except RowError as error:
                content = fault(error, raw)
            yield Row(at, number, None, content)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def size_of(line: bytes) -> int:
    """Return the size of a line in bytes; a `LongLine` keeps only its first bytes."""
    return line.n_bytes if isinstance(line, LongLine) else len(line)


def fault(error: RowError, raw: bytes, group: DocId | None = None) -> Fault:
    """Return the fault of a row, with its bytes unless there are too many."""
    return Fault(str(error), None if isinstance(raw, LongLine) else raw, group)


def decode(raw: bytes) -> str:
    """Return the text of UTF-8 bytes.

    Raises:
        RowError: The line is too long, or a byte is not UTF-8; the reason names it and its 0-based position.
    """
    if isinstance(raw, LongLine):
        raise RowError(linestreams.too_long(raw.n_bytes))
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RowError(
            f"byte 0x{raw[error.start]:02x} at position {error.start} is not UTF-8; convert the file to UTF-8"
        ) from None


def clean(text: str) -> str:
    r"""Replace each lone surrogate, which JSON can escape but UTF-8 cannot hold, by U+FFFD.

    Examples:
        >>> clean("a\ud800b")
        'a\ufffdb'
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def used_columns(config: ExtractConfig) -> tuple[str, ...]:
    """Return the columns of tabular input that have a role other than being kept, each once."""
    named = [getattr(config, setting) for setting in _COLUMN_SETTINGS]
    return tuple(dict.fromkeys(name for name in named if name is not None))


def needed_columns(config: ExtractConfig) -> tuple[str, ...]:
    """Return the columns of tabular input that are read, each once."""
    return tuple(dict.fromkeys(used_columns(config) + config.keep_columns))


def check_columns(path: str, header: Sequence[str], config: ExtractConfig, *, remedy: str | None = None) -> None:
    """Check that a file's header names each needed column once; `remedy` says what to do if it lacks one.

    Raises:
        InputError: A column is missing or appears twice.
    """
    for name in needed_columns(config):
        count = header.count(name)
        if count == 0:
            raise InputError(missing_column(name, header, config, remedy=remedy), path=path)
        if count > 1:
            raise InputError(f"column {name!r} appears {count} times in the header; rename all but one", path=path)


def missing_column(name: str, columns: Iterable[str], config: ExtractConfig, *, remedy: str | None = None) -> str:
    """Return the reason for a missing column: its name, the nearest column or those there are, and what to do."""
    setting = next((s for s in reversed(_COLUMN_SETTINGS) if getattr(config, s) == name), "keep_columns")
    is_default = name == getattr(type(config), setting)
    asked = f"no column {name!r}" if is_default else f"no column {name!r} for `{setting}`"
    # In a file without a header these are the fields of its first row.
    names = [textwrap.shorten(name, 40, placeholder="...") for name in columns]
    there = f"columns are {', '.join(names[:20] + ['...'] * (len(names) > 20)) or 'none'}"
    if not is_default and remedy is None:
        return f"{asked}; {did_you_mean(name, names) or there}"
    return f"{asked}; {there}; {remedy or f'pass `{setting}`'}"


def content_of(record: Mapping[str, Any], config: ExtractConfig) -> Content:
    """Make the content of a tabular row from its columns; `record` has all that are needed.

    Raises:
        RowError: A value is null or of a wrong type; the reason names column and value.
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
    """Return a value as messages show it, cut to 40 characters."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _text(column: str, value: object) -> str:
    if isinstance(value, str):
        return clean(value)
    if value is None:
        raise RowError(f"column {column!r} is null; give it a text, if only an empty one")
    hint = "; pass `is_split_into_words` for lists of words" if isinstance(value, list) else ""
    raise RowError(f"column {column!r} holds {shown(value)}, which is not text{hint}")


def _words(column: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        hint = "drop `is_split_into_words` for texts"
        raise RowError(f"column {column!r} holds {shown(value)}, which is not a list of words; {hint}")
    for position, word in enumerate(value):
        if not isinstance(word, str):
            raise RowError(f"column {column!r} holds {shown(word)} at position {position}, which is not a word")
    return tuple(map(clean, value))


def _identifier(column: str, value: object) -> DocId:
    name = _name(value)
    if name is None or (isinstance(name, int) and name not in INT64):
        raise RowError(f"id column {column!r} holds {shown(value)}; an id is a string or a 64-bit integer")
    return name


def _group(column: str, value: object) -> DocId | None:
    name = _name(value)
    if name is None and value is not None:
        raise RowError(f"document column {column!r} holds {shown(value)}; a document's name is a string or an integer")
    return name


def _name(value: object) -> DocId | None:
    if isinstance(value, str):
        return clean(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kept(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


def _labels(record: Mapping[str, Any], column: str | None, n_words: int) -> Mapping[str, Sequence[str | None]]:
    if column is None:
        return _NOTHING
    value = record[column]
    if not isinstance(value, list):
        raise RowError(f"label column {column!r} holds {shown(value)}, which is not a list with one label per word")
    if len(value) != n_words:
        raise RowError(f"label column {column!r} has {len(value)} labels for {n_words} words; give each word one")
    return {"label": [None if label is None else clean(str(label)) for label in value]}


def n_values(raw: bytes, marks: bytes) -> int:
    """Return how often the bytes `marks` occur in a row outside double quotes, or anywhere if that is rare.

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


# A small compressed file may end with millions of blank lines: beyond these limits, they are held compressed.
_HELD_ROWS = 1000
_HELD_BYTES = 1 << 20


def without_blank_tail(rows: Iterable[Row]) -> Iterator[Row]:
    """Drop the blank lines at the end of a file; blank lines before another row stay bad rows."""
    packed: list[bytes] = []
    held: list[Row] = []
    n_bytes = 0
    for row in rows:
        content = row.content
        if isinstance(content, Fault) and content.raw is not None and content.raw.isspace():
            held.append(row)
            n_bytes += len(content.raw)
            if len(held) >= _HELD_ROWS or n_bytes >= _HELD_BYTES:
                packed.append(_pack(held))
                held, n_bytes = [], 0
            continue
        for block in packed:
            yield from _unpack(block)
        yield from held
        packed, held, n_bytes = [], [], 0
        yield row


def _pack(rows: Sequence[Row]) -> bytes:
    """Compress bad rows; the differences of their places compress best."""
    first = rows[0]
    steps = [(row.offset - last.offset, row.row - last.row, *row.content[:2]) for last, row in pairwise([first, *rows])]
    return zlib.compress(marshal.dumps((first.offset, first.row, steps)))


def _unpack(block: bytes) -> Iterator[Row]:
    offset, row, steps = marshal.loads(zlib.decompress(block))
    for offset_step, row_step, reason, raw in steps:
        offset, row = offset + offset_step, row + row_step
        yield Row(offset, row, None, Fault(reason, raw))
