"""Reader of JSON arrays: one object per element."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec

from bertfeat.choices import CorpusFormat
from bertfeat.corpus.content import Row, Start, tried
from bertfeat.corpus.jsonl import JsonlReader, record_of
from bertfeat.corpus.linestreams import BOM
from bertfeat.errors import InputError
from bertfeat.records import InputFile

_FIRST_KEY = re.compile(rb'\{\s*"((?:[^"\\]|\\.){0,60})"\s*:')


class JsonReader(JsonlReader):
    """Reads .json, an array of objects, into memory; an array of strings is a column `text`.

    A row is an element of the array, by its number from 1; offsets are 0-based elements.
    """

    format = CorpusFormat.JSON
    endings = (".json",)

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        with closing(self._stream) as stream:
            text = stream.read().removeprefix(BOM).lstrip()
        if text and not text.startswith(b"["):
            raise InputError(_not_an_array(text), path=file.path)
        try:
            self._elements = _elements(text or b"[]")
        except (ValueError, RecursionError) as error:
            reason = f"is not a JSON array ({error}); was it cut off? Write one array per file"
            raise InputError(reason, path=file.path) from None

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per element, from an element on."""
        for number in range(start.offset, len(self._elements)):
            raw = bytes(self._elements[number])
            yield Row(number, number + 1, None, tried(_record, raw), raw)


def _elements(text: bytes) -> Sequence[Any]:
    try:
        found: Sequence[Any] = msgspec.json.decode(text, type=list[msgspec.Raw])
        return found
    except msgspec.DecodeError:
        # NaN and lone surrogates, which Python's json reads and writes.
        return [json.dumps(element).encode() for element in json.loads(text)]


def _record(raw: bytes) -> dict[str, Any]:
    return record_of(b'{"text":%b}' % raw if raw.startswith(b'"') else raw, "element")


def _not_an_array(text: bytes) -> str:
    """Return the reason for a file that starts with something other than an array."""
    if not text.startswith(b"{"):
        return f"starts with {text[:20]!r}, which is not a JSON array of objects; check the file, or pass `format`"
    lines = text.split(b"\n", 2)
    if len(lines) > 1 and lines[0].rstrip().endswith(b"}") and lines[1].startswith(b"{"):
        return "holds one object per line; pass `format='jsonl'`"
    key = _FIRST_KEY.match(text)
    first = f" (its first key is {key[1].decode(errors='replace')!r})" if key else ""
    return f"holds one object{first}, not an array of objects; write the array it holds to a file of its own"
