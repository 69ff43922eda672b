"""Streams of the decompressed bytes of a file, and their lines with their places."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from bertfeat.errors import InputError
from bertfeat.records import InputFile
from bertfeat.storage import ObjectPath, as_path, is_url

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The largest line, CSV record, CoNLL sentence or Parquet row that is read, and the most fields or words in one. While a
# row is parsed, memory holds it several times, and a small compressed file may contain a huge one.
MAX_ROW_BYTES = 64_000_000
MAX_ROW_VALUES = 1_000_000
BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
_SHOWN_BYTES = 100
# Words of zlib and zstd about bytes that do not begin a stream.
_NOT_A_BEGINNING = ("header check", "compression method", "frame descriptor")


class _Decompressed(io.RawIOBase):
    """The decompressed bytes of a file with a position.

    A compressed stream seeks forward by reading, and backward by opening the file again: slices in ascending order
    need one decompression of the file.
    """

    # The garbage collector also closes a stream whose file could not be opened.
    _source: Any = None

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._open()

    def _open(self) -> None:
        try:
            source = _open(self._file.path)
        except OSError as error:
            reason = f"cannot be opened ({first_line(error)}); was it moved since it was planned?"
            raise InputError(reason, path=self._file.path) from error
        codec = self._file.compression
        self._source = source if codec is None else pa.CompressedInputStream(source, codec)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        if self._file.compression is None:
            try:
                self._position = self._source.seek(offset)
            except OSError as error:
                raise self._unreadable(error) from error
            return self._position
        if offset < self._position:
            self._close_source()
            self._open()
        while self._position < offset and self._advance(offset - self._position):
            pass
        return self._position

    def _advance(self, n_bytes: int) -> int:
        return self.readinto(bytearray(min(n_bytes, BLOCK_BYTES)))

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            n_bytes = int(self._source.readinto(buffer))
        except OSError as error:
            raise self._unreadable(error) from error
        self._position += n_bytes
        return n_bytes

    def _unreadable(self, error: OSError) -> InputError:
        codec, reason = self._file.compression, first_line(error)
        if codec is None or error.errno is not None:
            return InputError(
                f"cannot be read after {self._position:,} bytes ({reason}); check the disk, or fetch the file again",
                path=self._file.path,
            )
        n_good = self._count_good_bytes()
        if n_good and any(word in reason for word in _NOT_A_BEGINNING):
            reason = (
                f"its {codec} data ends after {n_good:,} decompressed bytes, and what follows is not {codec} "
                f"({reason}); cut that off, or write the file again"
            )
        else:
            reason = (
                f"its {codec} data is damaged or cut off after {n_good:,} decompressed bytes "
                f"({reason}); fetch or write the file again"
            )
        return InputError(reason, path=self._file.path)

    def _count_good_bytes(self) -> int:
        """Count the bytes that can be decompressed; from the last position they are read one by one."""
        position = self._position
        self._close_source()
        self._open()
        with suppress(OSError):
            while self._position < position:
                self._position += int(self._source.readinto(bytearray(min(position - self._position, BLOCK_BYTES))))
            byte = bytearray(1)
            while self._source.readinto(byte):
                self._position += 1
        return self._position

    def _close_source(self) -> None:
        # An error on closing changes no byte that was read.
        with suppress(OSError):
            if self._source is not None:
                self._source.close()

    def close(self) -> None:
        if not self.closed:
            self._close_source()
        super().close()


def _open(path: str) -> pa.NativeFile:
    place = as_path(path) if is_url(path) else path
    return pa.PythonFile(place.open_buffered(), mode="r") if isinstance(place, ObjectPath) else pa.OSFile(path)


def first_line(error: Exception) -> str:
    """Return the system's reason for an error, without the lines that Arrow adds."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def open_stream(file: InputFile) -> BinaryIO:
    """Open the decompressed bytes of a file; the stream can seek.

    Raises:
        InputError: The file does not exist, or (on reading too) its compressed data is damaged or cut off.
    """
    return io.BufferedReader(_Decompressed(file), BLOCK_BYTES)


class LongLine(bytes):
    """The first bytes of a line longer than `MAX_ROW_BYTES`; the rest was read and dropped.

    Attributes:
        n_bytes: The bytes of the whole line.
        n_quotes: The double quotes in it, which tell a CSV reader whether the record ends with the line.
    """

    n_bytes: int
    n_quotes: int


def read_lines(stream: BinaryIO, offset: int, row: int) -> Iterator[tuple[int, int, bytes]]:
    r"""Yield (offset of the first byte, 1-based number, line) of each line, from a position on.

    Only `\n` ends a line, which includes it. A stream that cannot seek is read from where it is. A byte order mark at
    the start of the file is dropped. A line of more than `MAX_ROW_BYTES` is a `LongLine`.
    """
    if stream.seekable():
        stream.seek(offset)
    limit = MAX_ROW_BYTES
    readline = stream.readline
    while line := readline(limit + 1):
        n_bytes = len(line)
        if n_bytes > limit:
            line = _skip_rest(line, stream)
            n_bytes = line.n_bytes
        if offset == 0 and line.startswith(BOM) and n_bytes <= limit:
            line = line[len(BOM) :]
            if not line:
                return
        yield offset, row, line
        offset += n_bytes
        row += 1


def _skip_rest(start: bytes, stream: BinaryIO) -> LongLine:
    line = LongLine(start[:_SHOWN_BYTES])
    line.n_bytes, line.n_quotes = len(start), start.count(b'"')
    piece = start
    while piece and not piece.endswith(b"\n"):
        piece = stream.readline(BLOCK_BYTES)
        line.n_bytes += len(piece)
        line.n_quotes += piece.count(b'"')
    return line


def too_long(n_bytes: int) -> str:
    """Return the reason for a row of more than `MAX_ROW_BYTES`."""
    return f"the row has {n_bytes:,} bytes, {MAX_ROW_BYTES:,} are the most that are read; split it, or check `format`"


def too_many(what: str) -> str:
    """Return the reason for a row of more than `MAX_ROW_VALUES` fields or words."""
    return f"the row has more than {MAX_ROW_VALUES:,} {what}, the most that are read; split it, or check `format`"


def strip_line_end(line: bytes) -> bytes:
    r"""Return a line without its `\n` or `\r\n`; a carriage return elsewhere is text.

    Examples:
        >>> strip_line_end(b"a\rb\r\n")
        b'a\rb'
    """
    if line.endswith(b"\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(b"\n") else line
