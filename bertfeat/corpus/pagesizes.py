"""Sizes of the pages of a Parquet file, read from its footer and page headers before Arrow decodes them.

pyarrow's `row_group(n).column(n)` ends the process on some damaged footers (a C++ exception that Python cannot catch),
and a page of a few bytes may decompress to gigabytes. This reader raises instead, and allocates no more than the file
has bytes. The structs: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

_MAGIC = b"PAR1"
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MAX_DEPTH = 16
# Fields to read of a struct by their numbers: None for a value, or the fields of the structs inside.
_Fields = Mapping[int, Any]
_COLUMN: _Fields = {1: None, 3: None, 5: None, 7: None, 9: None, 11: None}
_FOOTER: _Fields = {3: None, 4: {1: {3: _COLUMN}, 3: None}}
_PAGE: _Fields = {2: None, 3: None, 5: {1: None, 2: None}, 8: {1: None, 4: None}}
# A header with statistics holds two of the chunk's values; a longer window is read where this one is too short.
_WINDOW_BYTES = 1 << 10
_MAX_HEADER_BYTES = 1 << 24
# Encodings of pages in which a value may need no bytes: it is in a dictionary, or like the value before it.
DICTIONARIES = frozenset({2, 8})
DELTA_BYTE_ARRAY = 7
# Physical types whose values have any number of bytes: BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY.
_BYTE_ARRAYS = (6, 7)


class DamagedParquet(ValueError):
    """The footer or a page header cannot be read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group: its path, its number of values, and its pages in the bytes `start` to `end`."""

    path: tuple[str, ...]
    is_bytes: bool
    n_values: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: its rows, and its columns in the order of the schema."""

    n_rows: int
    chunks: tuple[Chunk, ...]


def read_groups(file: BinaryIO) -> tuple[Group, ...]:
    """Return the row groups of a Parquet file.

    Raises:
        DamagedParquet: The footer cannot be read.
        OSError: The file cannot be read.
    """
    size = file.seek(0, 2)
    tail = _read(file, max(0, size - 8), 8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - 8:
        raise DamagedParquet("no footer")
    footer = _Struct(_read(file, size - 8 - length, length)).read(_FOOTER)
    groups = tuple(_group(found, size) for found in _listed(footer, 4))
    if sum(group.n_rows for group in groups) != _number(footer, 3):
        raise DamagedParquet("the footer's numbers of rows differ")
    return groups


def _group(found: Any, size: int) -> Group:
    return Group(_number(found, 3), tuple(_chunk(chunk, size) for chunk in _listed(found, 1)))


def _chunk(found: Any, size: int) -> Chunk:
    about = _field(found, 3)
    path = tuple(name.decode(errors="replace") for name in _listed(about, 3) if isinstance(name, bytes))
    # Some writers write 0 where there is no dictionary.
    start = min(_number(about, 9), _number(about, 11)) if _field(about, 11) else _number(about, 9)
    end = start + _number(about, 7)
    if not 0 <= start <= end <= size:
        raise DamagedParquet(f"column {'.'.join(path)} lies outside the file")
    return Chunk(path, _number(about, 1) in _BYTE_ARRAYS, _number(about, 5), start, end)


class _Page(NamedTuple):
    n_bytes: int
    n_values: int
    encoding: int | None


def measure_pages(file: BinaryIO, chunk: Chunk) -> tuple[int, set[int | None]]:
    """Return the decompressed bytes of a chunk's largest page, and the encodings of its data pages.

    Raises:
        DamagedParquet: A page header cannot be read, or the pages have more or fewer values than the chunk.
        OSError: The file cannot be read.
    """
    pages = list(_pages(file, chunk))
    if sum(page.n_values for page in pages) != chunk.n_values:
        raise DamagedParquet(f"column {'.'.join(chunk.path)} does not have the values that the footer counts")
    return max((page.n_bytes for page in pages), default=0), {page.encoding for page in pages}


def _pages(file: BinaryIO, chunk: Chunk) -> Iterator[_Page]:
    position = chunk.start
    while position < chunk.end:
        header, n_header = _page_header(file, position, chunk.end)
        n_bytes, n_stored = _number(header, 2), _number(header, 3)
        if n_bytes < 0 or n_stored < 0:
            raise DamagedParquet("a page of negative size")
        # A data page of version 1 or 2; other pages have no values.
        about = header.get(5, header.get(8))
        if about is None:
            yield _Page(max(n_bytes, n_stored), 0, None)
        else:
            yield _Page(max(n_bytes, n_stored), _number(about, 1), _number(about, 2 if 5 in header else 4))
        position += n_header + n_stored


def _page_header(file: BinaryIO, position: int, end: int) -> tuple[Mapping[int, Any], int]:
    n_bytes = _WINDOW_BYTES
    while True:
        reader = _Struct(_read(file, position, min(n_bytes, end - position)))
        try:
            return reader.read(_PAGE), reader.position
        except DamagedParquet:
            n_bytes *= 16
            if n_bytes > min(_MAX_HEADER_BYTES, 16 * (end - position)):
                raise


def _read(file: BinaryIO, offset: int, n_bytes: int) -> bytes:
    file.seek(offset)
    return file.read(n_bytes)


def _field(found: Any, field: int) -> Any:
    """Return a field of a struct; None where there is no such field, or no struct."""
    return found.get(field) if isinstance(found, dict) else None


def _number(found: Any, field: int) -> int:
    value = _field(found, field)
    if not isinstance(value, int):
        raise DamagedParquet(f"field {field} is missing")
    return value


def _listed(found: Any, field: int) -> list[Any]:
    value = _field(found, field) or []
    if not isinstance(value, list):
        raise DamagedParquet(f"field {field} is not a list")
    return value


class _Struct:
    """Reads a struct of Thrift's compact protocol from bytes: the fields asked for; others are skipped.

    The protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def read(self, fields: _Fields | None, depth: int = 0) -> dict[int, Any]:
        """Return the fields by number: integers, bytes, lists and dictionaries; empty if none is asked for."""
        if depth > _MAX_DEPTH:
            raise DamagedParquet("structs nest too deep")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            delta = head >> 4
            number = number + delta if delta else self._signed()
            if fields is not None and number in fields and number not in found:
                found[number] = self._value(head & 0x0F, fields[number], depth, keep=True)
            elif head & 0x0F > _FALSE:
                self._value(head & 0x0F, None, depth, keep=False)
        return found

    def _value(self, kind: int, fields: _Fields | None, depth: int, *, keep: bool) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind == _BINARY:
            return self._skip(self._unsigned(), keep=keep)
        if kind == _STRUCT:
            return self.read(fields, depth + 1)
        if kind in (_LIST, _SET):
            return self._list(fields, depth, keep=keep)
        if kind == _MAP:
            return self._map(depth)
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._skip(1, keep=False)
        if kind == _DOUBLE:
            return self._skip(8, keep=False)
        raise DamagedParquet(f"no type {kind}")

    def _list(self, fields: _Fields | None, depth: int, *, keep: bool) -> list[Any]:
        if depth > _MAX_DEPTH:
            raise DamagedParquet("lists nest too deep")
        head = self._byte()
        n_elements = self._count(head >> 4 if head >> 4 < 15 else self._unsigned())
        elements = (self._value(head & 0x0F, fields, depth + 1, keep=keep) for _ in range(n_elements))
        if keep:
            return list(elements)
        for _ in elements:
            pass
        return []

    def _map(self, depth: int) -> None:
        n_pairs = self._count(self._unsigned())
        kinds = self._byte() if n_pairs else 0
        for _ in range(n_pairs):
            self._value(kinds >> 4, None, depth + 1, keep=False)
            self._value(kinds & 0x0F, None, depth + 1, keep=False)

    def _count(self, n_elements: int) -> int:
        # An element has at least one byte: a damaged count must not make a long loop.
        if n_elements > len(self._data) - self.position:
            raise DamagedParquet("cut off")
        return n_elements

    def _byte(self) -> int:
        if self.position >= len(self._data):
            raise DamagedParquet("cut off")
        self.position += 1
        return self._data[self.position - 1]

    def _skip(self, n_bytes: int, *, keep: bool) -> bytes:
        self.position += self._count(n_bytes)
        return self._data[self.position - n_bytes : self.position] if keep else b""

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise DamagedParquet("a number is too long")
        return value | byte << shift

    def _signed(self) -> int:
        """Read a number in zigzag coding: 0, -1, 1, -2, ... are written as 0, 1, 2, 3, ..."""
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
