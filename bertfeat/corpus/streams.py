"""The bytes of a file, decompressed, as lines that know where they stand."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from bertfeat.errors import InputError
from bertfeat.records import InputFile
from bertfeat.storage import ObjectPath, as_path

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The longest line, CSV record, CoNLL sentence or Parquet row group that is read. One row is held in memory whole, and
# a file without line ends must be an error rather than the end of the machine's memory.
MAX_ROW_BYTES = 256 * 1024 * 1024
BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"


class _Decompressed(io.RawIOBase):
    """The decompressed bytes of a file with a position.

    A compressed stream seeks forward by reading on and backward by opening the file again, so that slices read in
    ascending order cost one decompression of the file.
    """

    def __init__(self, file: InputFile) -> None:
        self._file = file
        self._open()

    def _open(self) -> None:
        try:
            source = _open(self._file.path)
        except OSError as error:
            raise InputError(
                f"cannot be opened ({_first_line(error)}); was it moved since it was planned?", path=self._file.path
            ) from error
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
            self._position = self._source.seek(offset)
            return self._position
        if offset < self._position:
            self._source.close()
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
            what = self._file.compression or "file"
            raise InputError(
                f"its {what} data is damaged or cut off after {self._position:,} decompressed bytes "
                f"({_first_line(error)}); fetch or write the file again",
                path=self._file.path,
            ) from error
        self._position += n_bytes
        return n_bytes

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def _open(path: str) -> pa.NativeFile:
    place = as_path(path)
    return pa.PythonFile(place.open_buffered(), mode="r") if isinstance(place, ObjectPath) else pa.OSFile(path)


def _first_line(error: OSError) -> str:
    """Return what the system says, without the lines that Arrow adds."""
    if error.errno is not None:
        return os.strerror(error.errno)
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def open_stream(file: InputFile) -> BinaryIO:
    """Open the decompressed bytes of a file; the stream seeks.

    Raises:
        InputError: On opening or reading, the file is gone, or its compressed data is damaged or cut off.
    """
    return io.BufferedReader(_Decompressed(file), BLOCK_BYTES)


def read_lines(stream: BinaryIO, path: str, offset: int, row: int) -> Iterator[tuple[int, int, bytes]]:
    r"""Yield each line with the byte where it starts and its 1-based number, from a position on.

    A line ends at `\n` alone and is yielded with it. A byte order mark at the start of the file is dropped.

    Raises:
        InputError: A line is longer than `MAX_ROW_BYTES`.
    """
    stream.seek(offset)
    limit = MAX_ROW_BYTES
    readline = stream.readline
    while line := readline(limit + 1):
        n_bytes = len(line)
        if n_bytes > limit:
            raise too_large(path, row)
        if offset == 0 and line.startswith(BOM):
            line = line[len(BOM) :]
            if not line:
                return
        yield offset, row, line
        offset += n_bytes
        row += 1


def too_large(path: str, row: int) -> InputError:
    """Return the error for a row of more than `MAX_ROW_BYTES`."""
    return InputError(
        f"the row is longer than {MAX_ROW_BYTES:,} bytes, the most that is read; cut it up, or check --format",
        path=path,
        row=row,
    )


def strip_line_end(line: bytes) -> bytes:
    r"""Return a line without its `\n` or `\r\n`; a carriage return elsewhere is text.

    Example:
        >>> strip_line_end(b"a\rb\r\n")
        b'a\rb'
    """
    if line.endswith(b"\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(b"\n") else line
