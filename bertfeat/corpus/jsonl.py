"""JSON Lines: one object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from bertfeat.config import CorpusFormat, ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import (
    INT64,
    Content,
    Fault,
    Row,
    RowError,
    Start,
    TextReader,
    content_of,
    decode,
    fault,
    missing_column,
    n_values,
    shown,
    used_columns,
    without_blank_tail,
)
from bertfeat.corpus.linestreams import strip_line_end
from bertfeat.records import InputFile


def _refuse_constant(literal: str) -> NoReturn:
    raise RowError(f"{literal} is no JSON; write null")


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
    endings = (".jsonl", ".ndjson")
    has_columns = has_lists = True
    kept_types = None

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        self._used = used_columns(config)
        self._keep = frozenset(config.keep_columns)

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield a row a line, from a line on."""
        return without_blank_tail(self._rows(start))

    def _rows(self, start: Start) -> Iterator[Row]:
        for at, number, raw in self.lines(start):
            content: Content | Fault
            try:
                content = self._content(raw)
            except RowError as error:
                content = fault(error, raw)
            yield Row(at, number, None, content)

    def _content(self, raw: bytes) -> Content:
        _check_n_values(raw)
        record = _parse(decode(strip_line_end(raw)))
        for name in self._used:
            if name not in record:
                raise RowError(missing_column(name, record, self.config))
        if self._keep:
            self._look_at_kept(record)
        return content_of(record, self.config)

    def _look_at_kept(self, record: dict[str, Any]) -> None:
        """Note the kept columns of a row, and make those that it lacks null."""
        self.kept_seen |= self._keep & record.keys()
        for name in self._keep:
            value = record.setdefault(name)
            if isinstance(value, list | dict):
                raise RowError(f"kept column {name!r} holds a {type(value).__name__}; keep plain values only")
            if isinstance(value, int) and value not in INT64:
                raise RowError(f"kept column {name!r} holds {value}, which is no 64-bit integer; write it as a string")


def _check_n_values(raw: bytes) -> None:
    if len(raw) <= linestreams.MAX_ROW_VALUES:
        return
    # Escaped quotes do not end a string.
    if n_values(raw.replace(b"\\\\", b"").replace(b'\\"', b""), b",[{") > linestreams.MAX_ROW_VALUES:
        raise RowError(linestreams.too_many("values"))


def _parse(line: str) -> dict[str, Any]:
    """Return the object on a line.

    Raises:
        RowError: The line is blank, no JSON, or holds no object.
    """
    if not line or line.isspace():
        raise RowError("the line is blank; remove it")
    try:
        value = _DECODER.decode(line)
    except json.JSONDecodeError as error:
        raise RowError(f"no JSON: {error.msg} at character {error.pos}; write one whole object a line") from None
    except RecursionError:
        raise RowError("the JSON is nested too deeply; keep text and ids at the top") from None
    except ValueError as error:
        # Python refuses integers of thousands of digits.
        raise RowError(f"no JSON that can be read: {error}; write such numbers as strings") from None
    if not isinstance(value, dict):
        raise RowError(f'the line holds a {type(value).__name__}, not an object; write {{"text": ...}}')
    return value
