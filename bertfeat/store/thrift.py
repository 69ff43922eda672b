"""Structs of Thrift's compact protocol, as Parquet has them before every page: read, never written.

The protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from dataclasses import dataclass, field

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)

_INTS = {I16: 16, I32: 32, I64: 64}
_MAX_DEPTH = 16


class ThriftError(ValueError):
    """The bytes are no struct, or end inside one."""


@dataclass(slots=True)
class Struct:
    """The fields of a struct that were read: whole numbers, truth values and structs; the rest is passed over.

    Keys are the numbers of the fields; a field that stands twice counts as damage.
    """

    ints: dict[int, int] = field(default_factory=dict)
    flags: dict[int, bool] = field(default_factory=dict)
    structs: dict[int, Struct] = field(default_factory=dict)


class CompactReader:
    """Reads structs from bytes, one after the other.

    Only 32-bit numbers are kept in `Struct.ints`: no other kind stands in the headers of pages.

    Example:
        >>> reader = CompactReader(bytes([0x15, 0x06, 0x11, 0x00]))
        >>> reader.struct()
        Struct(ints={1: 3}, flags={2: True}, structs={})
        >>> reader.position
        4
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def struct(self, depth: int = 0) -> Struct:
        """Read a struct.

        Raises:
            ThriftError: It is none, is cut off, or nests too deep.
        """
        if depth > _MAX_DEPTH:
            raise ThriftError("structs nest too deep")
        found = Struct()
        seen: set[int] = set()
        number = 0
        while head := self._byte():
            kind, delta = head & 0x0F, head >> 4
            number = number + delta if delta else self._signed(16)
            if number in seen:
                raise ThriftError(f"field {number} stands twice")
            seen.add(number)
            self._field(found, number, kind, depth)
        return found

    def _field(self, found: Struct, number: int, kind: int, depth: int) -> None:
        if kind == I32:
            found.ints[number] = self._signed(32)
        elif kind in (TRUE, FALSE):
            found.flags[number] = kind == TRUE
        elif kind == STRUCT:
            found.structs[number] = self.struct(depth + 1)
        else:
            self._skip(kind, depth)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise ThriftError("values nest too deep")
        if kind in (TRUE, FALSE, BYTE):  # the elements of lists; a field has its truth value in its head
            self._advance(1)
        elif kind in _INTS:
            self._signed(_INTS[kind])
        elif kind == DOUBLE:
            self._advance(8)
        elif kind == BINARY:
            self._advance(self._unsigned(32))
        elif kind in (LIST, SET):
            head = self._byte()
            n_elements = head >> 4 if head >> 4 < 15 else self._unsigned(32)
            self._skip_all(n_elements, (head & 0x0F,), depth)
        elif kind == MAP:
            n_pairs = self._unsigned(32)
            kinds = self._byte() if n_pairs else 0
            self._skip_all(n_pairs, (kinds >> 4, kinds & 0x0F), depth)
        elif kind == STRUCT:
            self.struct(depth + 1)
        else:
            raise ThriftError(f"no type {kind}")

    def _skip_all(self, n_times: int, kinds: tuple[int, ...], depth: int) -> None:
        # An element takes a byte at least: a damaged count must not make a long loop.
        if n_times * len(kinds) > len(self._data) - self.position:
            raise ThriftError("cut off")
        for _ in range(n_times):
            for kind in kinds:
                self._skip(kind, depth + 1)

    def _byte(self) -> int:
        self._advance(1)
        return self._data[self.position - 1]

    def _advance(self, n_bytes: int) -> None:
        if n_bytes > len(self._data) - self.position:
            raise ThriftError("cut off")
        self.position += n_bytes

    def _unsigned(self, n_bits: int) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= n_bits:
                raise ThriftError("a number is too long")
        if value >> n_bits:
            raise ThriftError("a number is too large")
        return value

    def _signed(self, n_bits: int) -> int:
        """Read a number in zigzag coding: 0, -1, 1, -2, ... stand as 0, 1, 2, 3, ..."""
        value = self._unsigned(n_bits)
        return (value >> 1) ^ -(value & 1)
