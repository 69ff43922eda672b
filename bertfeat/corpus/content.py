"""Rows of a file, the base classes of readers, and the texts that they decode."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

from bertfeat.config import ExtractConfig
from bertfeat.corpus.line_streams import open_stream, read_lines
from bertfeat.errors import InputError
from bertfeat.records import DocId, FileSlice, InputFile

_SURROGATE = re.compile("[\ud800-\udfff]")
NOTHING: Mapping[str, Any] = {}
# Where the rows of a file begin.
BEGIN = FileSlice(file=0, offset=0, row=1, n_rows=0)
# The settings that formats with lists of words follow.
WORD_SETTINGS: tuple[str, ...] = ("is_split_into_words", "label_column")


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


class Row(NamedTuple):
    """One row of a file.

    `offset`, `row` and `state` are its start, in the units of `FileSlice`; `values` those of its columns, or the reason
    why it cannot be read; `raw` its bytes if the format has them; `group` its document if the file tells.
    """

    offset: int
    row: int
    state: str | None
    values: Mapping[str, Any] | RowError
    raw: bytes | None = None
    group: DocId | None = None


class Reader(ABC):
    """A format; an instance is an open file.

    Attributes:
        format: The format that it reads.
        endings: The file endings of the format.
        has_columns: Rows are records, and settings name their columns.
        settings: The settings that its files follow; another one is refused.
        has_documents: Rows say which document they belong to, without a column for it.
        has_words: Documents are always given as words.
        own_columns: Columns that come from the format itself, without a setting.
        own_id: The column with the ids, if no setting names one.
        annotations: The names of the word columns; None in a file without words.
        types: The Arrow types of the columns; None if rows have columns of their own.
        columns: The names of the columns, as the file has them; a name may occur twice.
    """

    format: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    has_columns: ClassVar[bool] = False
    has_documents: ClassVar[bool] = False
    has_words: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()
    own_columns: ClassVar[tuple[str, ...]] = ()
    own_id: ClassVar[str | None] = None

    annotations: tuple[str, ...] | None = ()
    types: Mapping[str, Any] | None = NOTHING
    columns: Sequence[str] = ()

    def __init__(self, file: InputFile) -> None:
        self.file = file

    def good_rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the number and the values of each row."""
        for row in self.rows(BEGIN):
            if isinstance(row.values, RowError):
                raise InputError(str(row.values), path=self.file.path, row=row.row)
            yield row.row, row.values

    def check_names(self, names: Iterable[str]) -> None:
        """Check that each of some columns has a name of its own."""
        if twice := next((name for name in names if self.columns.count(name) > 1), None):
            raise InputError(f"two columns are named {twice!r}; rename one", path=self.file.path)

    def use(self, config: ExtractConfig) -> None:  # noqa: B027
        """Check that the file has what the settings name, else raise `InputError`, and read nothing else."""

    def select(self, names: Sequence[str]) -> None:  # noqa: B027
        """Read no other columns than these, where that saves time."""

    @abstractmethod
    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield the rows from `start` on, which is the start of a row."""

    @abstractmethod
    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the content of a row's values; raise `RowError` for a value that is missing or of a wrong type."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class TextReader(Reader):
    """An open file of lines."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self._stream = open_stream(file)

    def lines(self, start: FileSlice) -> Iterator[tuple[int, int, bytes]]:
        """Yield (byte offset, line number, line with its end) from a line on."""
        return read_lines(self._stream, start.offset, start.row)

    def line_rows(self, start: FileSlice, values_of: Callable[[bytes], Mapping[str, Any]]) -> Iterator[Row]:
        """Yield one row per line, from a line on; where the function raises `RowError`, the row is bad."""
        for at, number, raw in self.lines(start):
            yield Row(at, number, None, tried(values_of, raw), raw)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


V = TypeVar("V")


def tried(function: Callable[[Any], V], argument: Any) -> V | RowError:
    """Return what a function makes of its argument, or the `RowError` that it raises."""
    try:
        return function(argument)
    except RowError as error:
        return error


def decode(raw: bytes) -> str:
    """Return the text of UTF-8 bytes; raise `RowError` for others."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        encoding = "utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "cp1252"
        raise RowError(
            f"byte 0x{raw[error.start]:02x} at position {error.start} is not UTF-8; convert the file to UTF-8: "
            f"iconv -f {encoding} -t utf-8 OLD > NEW, or in Excel save it as CSV UTF-8"
        ) from None


def clean(text: str) -> str:
    """Replace each lone surrogate, which JSON can escape but UTF-8 cannot hold, by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def without_blank_tail(rows: Iterable[Row]) -> Iterator[Row]:
    """Drop the blank lines at the end of a file; blank lines before another row stay bad rows."""
    held: list[Row] = []
    for row in rows:
        if isinstance(row.values, RowError) and row.raw is not None and row.raw.isspace():
            held.append(row)
            continue
        yield from held
        held.clear()
        yield row
