"""Reader of Parquet footers: where the column chunks of each row group lie.

pyarrow's `row_group(n).column(n)` ends the process on some damaged footers (an exception in C++ that Python cannot
catch); this reader raises. The structs: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bertfeat.store.thrift import BINARY, FALSE, I32, I64, LIST, STRUCT, TRUE, CompactReader, ThriftError

_MAGIC = b"PAR1"

_T = TypeVar("_T")
# What to read of a struct: number of the field, its type, and how to read its value.
_Wanted = Mapping[int, tuple[int, Callable[[], Any]]]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group; numbers are as in the format, and -1 where the footer has none.

    `start` is the offset of its first page, `data_start` that of its first data page, `n_bytes` the size of its pages
    with their headers.
    """

    path: tuple[str, ...]
    is_elsewhere: bool
    kind: int
    codec: int
    encodings: frozenset[int]
    n_values: int
    n_bytes: int
    start: int
    data_start: int


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: its rows, and its columns in the order of the schema."""

    n_rows: int
    chunks: tuple[Chunk, ...]


def read_footer(fd: int) -> tuple[Group, ...]:
    """Return the row groups of a Parquet file.

    Args:
        fd: The file, open for reading.

    Raises:
        ThriftError: The footer is damaged.
        OSError: The file cannot be read.
    """
    size = os.fstat(fd).st_size
    tail = os.pread(fd, 8, max(0, size - 8))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - 8:
        raise ThriftError("no footer")
    return _FooterReader(os.pread(fd, length, size - 8 - length)).groups()


class _FooterReader(CompactReader):
    """Reads the fields that are wanted and passes over the rest."""

    def groups(self) -> tuple[Group, ...]:
        found = self._fields({4: (LIST, lambda: self._list(STRUCT, self._group))})
        return tuple(found.get(4, ()))

    def _group(self) -> Group:
        found = self._fields({1: (LIST, lambda: self._list(STRUCT, self._chunk)), 3: (I64, self._i64)})
        return Group(found.get(3, -1), tuple(found.get(1, ())))

    def _chunk(self) -> Chunk:
        found = self._fields({1: (BINARY, self._bytes), 3: (STRUCT, self._column)})
        about = found.get(3, {})
        data_start = about.get(9, -1)
        return Chunk(
            path=tuple(name.decode(errors="replace") for name in about.get(3, ())),
            is_elsewhere=1 in found,
            kind=about.get(1, -1),
            codec=about.get(4, -1),
            encodings=frozenset(about.get(2, ())),
            n_values=about.get(5, -1),
            n_bytes=about.get(7, -1),
            start=min(data_start, about.get(11, data_start)),
            data_start=data_start,
        )

    def _column(self) -> dict[int, Any]:
        return self._fields(
            {
                1: (I32, self._i32),
                2: (LIST, lambda: self._list(I32, self._i32)),
                3: (LIST, lambda: self._list(BINARY, self._bytes)),
                4: (I32, self._i32),
                5: (I64, self._i64),
                7: (I64, self._i64),
                9: (I64, self._i64),
                11: (I64, self._i64),
            }
        )

    def _fields(self, wanted: _Wanted) -> dict[int, Any]:
        found: dict[int, Any] = {}
        seen: set[int] = set()
        number = 0
        while head := self._byte():
            kind, delta = head & 0x0F, head >> 4
            number = number + delta if delta else self._signed(16)
            if number in seen:
                raise ThriftError(f"field {number} stands twice")
            seen.add(number)
            if number in wanted and wanted[number][0] == kind:
                found[number] = wanted[number][1]()
            elif kind not in (TRUE, FALSE):
                self._skip(kind, 0)
        return found

    def _list(self, kind: int, read: Callable[[], _T]) -> list[_T]:
        head = self._byte()
        n_elements = head >> 4 if head >> 4 < 15 else self._unsigned(32)
        # An element takes a byte at least: a damaged count must not make a long loop.
        if head & 0x0F != kind or n_elements > len(self._data) - self.position:
            raise ThriftError("not the list that stands here")
        return [read() for _ in range(n_elements)]

    def _bytes(self) -> bytes:
        length = self._unsigned(32)
        self._advance(length)
        return self._data[self.position - length : self.position]

    def _i32(self) -> int:
        return self._signed(32)

    def _i64(self) -> int:
        return self._signed(64)
