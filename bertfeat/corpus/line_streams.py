"""Streams of the decompressed bytes of a file, and their lines with their places."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from bertfeat.errors import InputError
from bertfeat.records import InputFile
from bertfeat.storage import as_path

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"


class _Decompressed(io.RawIOBase):
    """The decompressed bytes of a file with a position.

    A compressed stream seeks forward by reading, and backward by opening the file again: slices in ascending order
    need one decompression of the file.
    """

    def __init__(self, file: InputFile, source: Any) -> None:
        self._file, self._source = file, source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        if self._file.compression is None:
            self._position = self._source.seek(offset)
        elif offset < self._position:
            self._source.close()
            self._source, self._position = _open(self._file), 0
        while self._position < offset and self.readinto(bytearray(min(offset - self._position, BLOCK_BYTES))):
            pass
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            n_bytes = int(self._source.readinto(buffer))
        except OSError as error:
            place = f"its {self._file.compression or 'plain'} data cannot be read after {self._position:,} bytes"
            reason = f"{place} ({first_line(error)}); it may be damaged or cut off, so fetch or write it again"
            raise InputError(reason, path=self._file.path) from error
        self._position += n_bytes
        return n_bytes

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def _open(file: InputFile) -> Any:
    place = as_path(file.path)
    try:
        source = pa.OSFile(file.path) if isinstance(place, Path) else pa.PythonFile(place.open_buffered(), mode="r")
    except OSError as error:
        reason = f"cannot be opened ({first_line(error)}); was it moved since it was planned?"
        raise InputError(reason, path=file.path) from error
    return source if file.compression is None else pa.CompressedInputStream(source, file.compression)


def first_line(error: Exception) -> str:
    """Return the system's reason for an error, without the lines that Arrow adds."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def open_stream(file: InputFile) -> BinaryIO:
    """Open the decompressed bytes of a file; the stream can seek."""
    return io.BufferedReader(_Decompressed(file, _open(file)), BLOCK_BYTES)


def read_lines(stream: BinaryIO, offset: int, row: int) -> Iterator[tuple[int, int, bytes]]:
    r"""Yield (offset of the first byte, 1-based number, line) of each line, from a position on.

    Only `\n` ends a line, which includes it. A byte order mark at the start of the file is dropped.
    """
    if stream.seekable():
        stream.seek(offset)
    for line in stream:
        n_bytes = len(line)
        if offset == 0 and line.startswith(BOM):
            line = line[len(BOM) :]
            if not line:
                return
        yield offset, row, line
        offset += n_bytes
        row += 1


def strip_line_end(line: bytes) -> bytes:
    r"""Return a line without its `\n` or `\r\n`; a carriage return elsewhere is text."""
    return line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")
