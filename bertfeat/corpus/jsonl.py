"""Reader of JSON Lines: one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn

from bertfeat.choices import CorpusFormat
from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import Content, Row, RowError, Start, TextReader, decode, without_blank_tail
from bertfeat.corpus.linestreams import strip_line_end
from bertfeat.corpus.tabular import INT64, content_of, missing_column, n_values, names_in, nested, shown, used_columns
from bertfeat.records import InputFile


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
    kept_types = None
    # The place of a row, in messages.
    unit = "line"

    def __init__(self, file: InputFile, config: ExtractConfig) -> None:
        super().__init__(file, config)
        self._used = used_columns(config)
        self._keep = frozenset(config.keep_columns)

    def rows(self, start: Start) -> Iterator[Row]:
        """Yield one row per line, from a line on."""
        return without_blank_tail(self.line_rows(start, self.content_of_row))

    def content_of_row(self, raw: bytes) -> Content:
        """Return the content of a row.

        Raises:
            RowError: The row is too large, is not JSON, lacks a column, or has a value of a wrong type.
        """
        # Escaped quotes do not end a string.
        if len(raw) > linestreams.MAX_ROW_VALUES and (
            n_values(raw.replace(b"\\\\", b"").replace(b'\\"', b""), b",[{") > linestreams.MAX_ROW_VALUES
        ):
            raise RowError(linestreams.too_many("values"))
        record = self.record_of(decode(strip_line_end(raw)))
        values = {}
        for name in self._used:
            try:
                values[name] = nested(record, name)
            except KeyError:
                raise RowError(missing_column(name, names_in(record), self.config)) from None
        for name in self._keep:
            values[name] = self._kept(record, name)
        return content_of(values, self.config)

    def record_of(self, text: str) -> dict[str, Any]:
        """Return the object that a row holds.

        Raises:
            RowError: The row is not JSON, or holds another value.
        """
        value = parse(text, self.unit)
        if not isinstance(value, dict):
            raise RowError(f'the {self.unit} holds a {type(value).__name__}, not an object; write {{"text": ...}}')
        return value

    def _kept(self, record: dict[str, Any], name: str) -> object:
        """Return the value of a kept column, null if the row lacks it, and note that it has been seen."""
        try:
            value = nested(record, name)
        except KeyError:
            return None
        self.kept_seen.add(name)
        if isinstance(value, dict) and value:
            raise RowError(
                f"kept column {name!r} holds a dict; name its fields: `keep_columns='{name}.{next(iter(value))}'`"
            )
        if isinstance(value, list | dict):
            raise RowError(f"kept column {name!r} holds a {type(value).__name__}; keep plain values only")
        if isinstance(value, int) and value not in INT64:
            raise RowError(f"kept column {name!r} holds {value}, which is beyond 64 bits; write it as a string")
        return value


def parse(text: str, unit: str) -> Any:
    """Return the value of a JSON text; `unit` is what holds it, for messages.

    Raises:
        RowError: The text is empty or is not JSON.
    """
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
