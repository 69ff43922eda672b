"""Reader of JSON arrays: one object per element, read block by block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Row, Start
from bertfeat.corpus.jsonl import JsonlReader, parse
from bertfeat.corpus.linestreams import LongLine
from bertfeat.errors import InputError
from bertfeat.records import InputFile

_SPACES = b" \t\r\n"
_SHOWN_BYTES = 100
_FIRST_KEY = re.compile(rb'\{\s*"((?:[^"\\]|\\.){0,60})"\s*:')
# The number of open brackets rises or falls at these bytes; a comma ends an element of the array.
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_MARKS = _STEPS != 0
_MARKS[ord(",")] = True


class JsonReader(JsonlReader):
    """Reads .json, an array of objects; an array of strings is a column `text`.

    A row is an element of the array, by its number from 1. Offsets are those of the byte after the comma before it.
    """

    format = CorpusFormat.JSON
    endings = (".json",)
    unit = "element"

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        n_bytes, text = 0, b""
        while not text and (block := self._stream.read(linestreams.BLOCK_BYTES)):
            text = (block if n_bytes else block.removeprefix(linestreams.BOM)).lstrip(_SPACES)
            n_bytes += len(block)
        self._is_empty = not text
        if text and not text.startswith(b"["):
            raise InputError(_not_an_array(text), path=file.path)
        self.start = Start(n_bytes - len(text) + 1, 1)

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per element, from an element on."""
        return iter(()) if self._is_empty else self.line_rows(start, self.content_of_row)

    def record_of(self, text: str) -> dict[str, Any]:
        """Return the object that an element holds; a string is the column `text`."""
        return {"text": parse(text, self.unit)} if text.startswith('"') else super().record_of(text)

    def lines(self, start: Start) -> Iterator[tuple[int, int, bytes]]:
        """Yield (offset, number, bytes without the space around) of each element, from an element on.

        Raises:
            InputError: The array has no end, or something follows it.
        """
        offset, number = start.offset, start.row
        self._stream.seek(offset)
        scanner = _Scanner()
        element = _Element()
        while block := self._stream.read(linestreams.BLOCK_BYTES):
            first = 0
            for border in scanner.borders(block):
                element.add(block[first:border])
                first = border + 1
                raw = element.whole()
                if raw or number > 1 or border != scanner.end:
                    yield offset, number, raw
                offset, number, element = offset + element.n_bytes + 1, number + 1, _Element()
            if scanner.end is not None:
                self._check_end(offset, block[first:])
                return
            element.add(block[first:])
        raise InputError(
            f"the array has no end: element {number:,} is not whole; was the file cut off?", path=self.file.path
        )

    def _check_end(self, offset: int, block: bytes) -> None:
        """Refuse anything but space after the array, which ends at a byte offset."""
        while block:
            if rest := block.lstrip(_SPACES):
                raise InputError(
                    f"{rest[:20]!r} follows the array, which ends at byte {offset:,}; write one array per file, with "
                    "each bracket closed once",
                    path=self.file.path,
                )
            block = self._stream.read(linestreams.BLOCK_BYTES)


def _not_an_array(text: bytes) -> str:
    """Return the reason for a file that starts with something other than an array."""
    if not text.startswith(b"{"):
        return f"starts with {text[:20]!r}, which is not a JSON array of objects; check the file, or pass `format`"
    lines = text.splitlines()
    if len(lines) > 1 and lines[0].rstrip().endswith(b"}") and lines[1].startswith(b"{"):
        return "holds one object per line; pass `format='jsonl'`"
    key = _FIRST_KEY.match(text)
    first = f" (its first key is {key[1].decode(errors='replace')!r})" if key else ""
    return f"holds one object{first}, not an array of objects; write the array it holds to a file of its own"


class _Scanner:
    """Finds where the elements of an array end, block by block.

    Attributes:
        end: The place of the end of the array in the last block; None before it is met.
    """

    def __init__(self) -> None:
        self.end: int | None = None
        self._depth = 1
        self._in_string = self._is_escaped = False

    def borders(self, block: bytes) -> list[int]:
        """Return the places of the commas between elements in the next block, and of the end of the array."""
        codes = np.frombuffer(self._without_escapes(block), np.uint8)
        n_quotes = np.cumsum(codes == ord('"'), dtype=np.int32) + self._in_string
        marks = np.flatnonzero(_MARKS[codes] & (n_quotes % 2 == 0))
        depths = np.cumsum(_STEPS[codes[marks]], dtype=np.int64) + self._depth
        found = marks[(depths == 0) | ((depths == 1) & (codes[marks] == ord(",")))]
        ends = marks[depths == 0]
        self._in_string = bool(n_quotes[-1] % 2)
        if len(depths):
            self._depth = int(depths[-1])
        if len(ends):
            self.end = int(ends[0])
            found = found[found <= self.end]
        return list(found.tolist())

    def _without_escapes(self, block: bytes) -> bytes:
        """Return a block with letters in place of escapes, so that each quote in it begins or ends a string."""
        if self._is_escaped:
            block = b"x" + block[1:]
        if b"\\" in block:
            block = block.replace(b"\\\\", b"xx").replace(b'\\"', b"xx")
        self._is_escaped = block.endswith(b"\\")
        return block


class _Element:
    """The bytes of one element; of a large one, only the first."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        self.n_bytes += len(piece)
        self._pieces.append(piece)
        if self.n_bytes > linestreams.MAX_ROW_BYTES:
            self._pieces = [b"".join(self._pieces)[:_SHOWN_BYTES]]

    def whole(self) -> bytes:
        """Return the bytes without the space around them."""
        raw = b"".join(self._pieces).strip(_SPACES)
        if self.n_bytes <= linestreams.MAX_ROW_BYTES:
            return raw
        line = LongLine(raw)
        line.n_bytes = self.n_bytes
        return line
