"""Content of one row, the base classes of readers, and the texts that they decode."""

from __future__ import annotations

import codecs
import marshal
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.linestreams import LongLine, open_stream, read_lines
from bertfeat.records import DocId, InputFile

_SURROGATE = re.compile("[\ud800-\udfff]")
NOTHING: Mapping[str, Any] = {}


class RowError(Exception):
    """A row cannot be read; the message becomes the reason of its bad row."""


class Content(NamedTuple):
    """The content of one good row; the fields are those of `Document`."""

    text: str
    text_pair: str | None = None
    words: tuple[str, ...] | None = None
    doc_id: DocId | None = None
    group: DocId | None = None
    kept: Mapping[str, Any] = NOTHING
    annotations: Mapping[str, Sequence[str | None]] = NOTHING


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
        own_columns: Columns that come from the format itself, without a setting; the first may be the id.
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
    kept_types: Mapping[str, Any] | None = NOTHING
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
        encoding = "utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "cp1252"
        raise RowError(
            f"byte 0x{raw[error.start]:02x} at position {error.start} is not UTF-8; convert the file to UTF-8: "
            f"iconv -f {encoding} -t utf-8 OLD > NEW, or in Excel save it as CSV UTF-8"
        ) from None


def clean(text: str) -> str:
    r"""Replace each lone surrogate, which JSON can escape but UTF-8 cannot hold, by U+FFFD.

    Examples:
        >>> clean("a\ud800b")
        'a\ufffdb'
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


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
