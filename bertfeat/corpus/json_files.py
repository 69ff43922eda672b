"""Readers of JSON: one object per line, or an array of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar, NoReturn

import msgspec

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Content, Row, RowError, TextReader, decode, tried, without_blank_tail
from bertfeat.corpus.line_streams import BOM, strip_line_end
from bertfeat.corpus.tabular import LIST_SETTINGS, check_plain, content_of, shown
from bertfeat.errors import InputError
from bertfeat.records import FileSlice, InputFile


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
    has_columns = True
    settings = LIST_SETTINGS
    types = None

    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield one row per line, from a line on."""
        return without_blank_tail(self.line_rows(start, lambda raw: _record(strip_line_end(raw))))

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the content of an object."""
        content = content_of(values, config)
        for name, value in content.kept.items():
            check_plain(name, value)
        return content


class JsonReader(JsonlReader):
    """Reads .json, an array of objects, into memory; offsets are 0-based elements. Strings are a column `text`."""

    format = CorpusFormat.JSON
    endings = (".json",)

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        with closing(self._stream) as stream:
            text = stream.read().removeprefix(BOM).lstrip()
        try:
            self._elements = _elements(text or b"[]")
        except (ValueError, RecursionError) as error:
            hint = "write one array per file, or pass `format='jsonl'` for one object per line"
            raise InputError(f"is not a JSON array ({error}); {hint}", path=file.path) from None

    def rows(self, start: FileSlice) -> Iterator[Row]:
        """Yield one row per element, from an element on."""
        for number in range(start.offset, len(self._elements)):
            raw = bytes(self._elements[number])
            yield Row(number, number + 1, None, tried(_element, raw), raw)


def _record(raw: bytes) -> dict[str, Any]:
    """Return the object in some bytes."""
    text = decode(raw)
    if not text or text.isspace():
        raise RowError("the line is empty; remove it")
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        # Python refuses integers of thousands of digits, and values nested too deeply.
        raise RowError(f"not JSON that can be read: {error}; write one whole object per row") from None
    if not isinstance(value, dict):
        raise RowError(f'the row holds a {type(value).__name__}, not an object; write {{"text": ...}}')
    return value


def _elements(text: bytes) -> Sequence[Any]:
    try:
        found: Sequence[Any] = msgspec.json.decode(text, type=list[msgspec.Raw])
        return found
    except msgspec.DecodeError:
        # NaN and lone surrogates, which Python's json reads and writes.
        value = json.loads(text)
        if not isinstance(value, list):
            raise ValueError(f"it holds a {type(value).__name__}") from None
        return [json.dumps(element).encode() for element in value]


def _element(raw: bytes) -> dict[str, Any]:
    return _record(b'{"text":%b}' % raw if raw.startswith(b'"') else raw)
