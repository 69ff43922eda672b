"""Reader of JSON Lines: one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NoReturn

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Content, Row, RowError, Start, TextReader, decode, without_blank_tail
from bertfeat.corpus.linestreams import strip_line_end
from bertfeat.corpus.tabular import check_plain, content_of, shown


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
        return without_blank_tail(self.line_rows(start, lambda raw: record_of(strip_line_end(raw), "line")))

    def content(self, values: Mapping[str, Any], config: ExtractConfig) -> Content:
        """Return the content of an object."""
        content = content_of(values, config)
        for name, value in content.kept.items():
            check_plain(name, value)
        return content


def record_of(raw: bytes, unit: str) -> dict[str, Any]:
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
