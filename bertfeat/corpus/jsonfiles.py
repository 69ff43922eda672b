"""Readers of JSON: one object per line, or an array of objects."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar, NoReturn

import msgspec

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Content, Row, RowError, Start, TextReader, decode, tried, without_blank_tail
from bertfeat.corpus.linestreams import BOM, strip_line_end
from bertfeat.corpus.tabular import check_plain, content_of, shown
from bertfeat.errors import InputError
from bertfeat.records import InputFile

_FIRST_KEY = re.compile(rb'\{\s*"((?:[^"\\]|\\.){0,60})"\s*:')


def _refuse_constant(literal: str) -> NoReturn:
    raise RowError(f"{literal} is not JSON; write null")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise RowError(f"key {shown(twice)} appears twice in one object; keep one of them")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_object)


class JsonlReader(TextReader):
    """Reads .jsonl. A kept column that a row lacks is null there; every other column must be in each row."""

    format = CorpusFormat.JSONL
    endings: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    has_columns = has_lists = True
    types = None

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per line, from a line on."""
        return without_blank_tail(self.line_rows(start, lambda raw: _record_of(strip_line_end(raw), "line")))

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the content of an object."""
        content = content_of(values, config)
        for name, value in content.kept.items():
            check_plain(name, value)
        return content


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


def _record_of(raw: bytes, unit: str) -> dict[str, Any]:
    """Return the object in some bytes; `unit` is what holds it, for messages.

    Raises:
        RowError: There is no JSON, or another value.
    """
    value = _parse(decode(raw), unit)
    if not isinstance(value, dict):
        raise RowError(f'the {unit} holds a {type(value).__name__}, not an object; write {{"text": ...}}')
    return value


def _parse(text: str, unit: str) -> Any:
    if not text or text.isspace():
        raise RowError(f"the {unit} is empty; remove it")
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at character {error.pos}; write one whole object per {unit}") from None
    except RecursionError:
        raise RowError("the JSON is nested too deeply; keep text and ids at the top") from None
    except ValueError as error:
        # Python refuses integers of thousands of digits.
        raise RowError(f"the JSON cannot be read: {error}; write such numbers as strings") from None


def _elements(text: bytes) -> Sequence[Any]:
    try:
        found: Sequence[Any] = msgspec.json.decode(text, type=list[msgspec.Raw])
        return found
    except msgspec.DecodeError:
        # NaN and lone surrogates, which Python's json reads and writes.
        return [json.dumps(element).encode() for element in json.loads(text)]


def _record(raw: bytes) -> dict[str, Any]:
    return _record_of(b'{"text":%b}' % raw if raw.startswith(b'"') else raw, "element")


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
