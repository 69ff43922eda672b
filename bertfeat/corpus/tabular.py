"""Rows of tables: the columns that settings name, and the checks of the values in them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertfeat.config import ExtractConfig
from bertfeat.corpus import linestreams
from bertfeat.corpus.content import NOTHING, Content, RowError, clean
from bertfeat.errors import InputError, did_you_mean
from bertfeat.records import DocId

INT64 = range(-(2**63), 2**63)
_COLUMN_SETTINGS = ("text_column", "text_pair_column", "id_column", "document_column", "label_column")


def used_columns(config: ExtractConfig) -> tuple[str, ...]:
    """Return the columns of tabular input that have a role other than being kept, each once."""
    named = [getattr(config, setting) for setting in _COLUMN_SETTINGS]
    return tuple(dict.fromkeys(name for name in named if name is not None))


def needed_columns(config: ExtractConfig) -> tuple[str, ...]:
    """Return the columns of tabular input that are read, each once."""
    return tuple(dict.fromkeys(used_columns(config) + config.keep_columns))


def nested(record: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column; `content.body` is a field of `content` unless a column has that very name.

    A field of null is null.

    Raises:
        KeyError: There is no such column or field.

    Examples:
        >>> nested({"content": {"body": "a"}, "a.b": 1}, "content.body"), nested({"a.b": 1}, "a.b")
        ('a', 1)
    """
    if name in record:
        return record[name]
    head, dot, rest = name.partition(".")
    if not dot or head not in record:
        raise KeyError(name)
    inner = record[head]
    if inner is None:
        return None
    if not isinstance(inner, Mapping):
        raise KeyError(name)
    return nested(inner, rest)


def names_in(record: Mapping[str, Any]) -> list[str]:
    """Return the columns of a record and the fields inside them, one level deep, for messages."""
    inner = [f"{name}.{field}" for name, value in record.items() if isinstance(value, Mapping) for field in value]
    return [*record, *inner]


def check_columns(path: str, header: Sequence[str], config: ExtractConfig, *, remedy: str | None = None) -> None:
    """Check that a file's header names each needed column once; `remedy` says what to do if it lacks one.

    Raises:
        InputError: A column is missing or appears twice.
    """
    for name in needed_columns(config):
        count = header.count(name)
        if count == 0:
            raise InputError(missing_column(name, header, config, remedy=remedy), path=path)
        if count > 1:
            raise InputError(f"column {name!r} appears {count} times in the header; rename all but one", path=path)


def missing_column(name: str, columns: Iterable[str], config: ExtractConfig, *, remedy: str | None = None) -> str:
    """Return the reason for a missing column: its name, the nearest column or those there are, and what to do."""
    setting = next((s for s in reversed(_COLUMN_SETTINGS) if getattr(config, s) == name), "keep_columns")
    is_default = name == getattr(type(config), setting)
    asked = f"no column {name!r}" if is_default else f"no column {name!r} for `{setting}`"
    # A column that holds fields is not what a setting names. Without a header, these are the fields of the first row.
    columns = list(columns)
    parents = {name.rpartition(".")[0] for name in columns}
    names = [textwrap.shorten(name, 40, placeholder="...") for name in columns if name not in parents]
    there = f"columns are {', '.join(names[:20] + ['...'] * (len(names) > 20)) or 'none'}"
    if not is_default and remedy is None:
        return f"{asked}; {did_you_mean(name, names) or there}"
    return f"{asked}; {there}; {remedy or f'pass `{setting}`'}"


def content_of(record: Mapping[str, Any], config: ExtractConfig) -> Content:
    """Make the content of a tabular row from its columns; `record` has all that are needed.

    Raises:
        RowError: A value is null or of a wrong type; the reason names column and value.
    """
    column = config.text_column
    words = _words(column, record[column]) if config.is_split_into_words else None
    pair = record[config.text_pair_column] if config.text_pair_column else None
    return Content(
        text=_text("text_column", column, record[column]) if words is None else " ".join(words),
        text_pair=None if pair is None else _text("text_pair_column", str(config.text_pair_column), pair),
        words=words,
        doc_id=_identifier(config.id_column, record[config.id_column]) if config.id_column else None,
        group=_group(config.document_column, record[config.document_column]) if config.document_column else None,
        kept={name: _kept(record[name]) for name in config.keep_columns} if config.keep_columns else NOTHING,
        annotations=NOTHING if words is None else _labels(record, config.label_column, len(words)),
    )


def shown(value: object) -> str:
    """Return a value as messages show it, cut to 40 characters."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _text(setting: str, column: str, value: object) -> str:
    if isinstance(value, str):
        return clean(value)
    if value is None:
        raise RowError(f"column {column!r} is null; give it a text, if only an empty one")
    hint = f"write it as a string, or pass another `{setting}`"
    if isinstance(value, list):
        hint = "pass `is_split_into_words` for lists of words"
    elif isinstance(value, Mapping):
        hint = next(
            (f"name a field of it: `{setting}='{column}.{name}'`" for name in value if isinstance(value[name], str)),
            hint,
        )
    raise RowError(f"column {column!r} holds {shown(value)}, which is not text; {hint}")


def _words(column: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        hint = "drop `is_split_into_words` for texts"
        raise RowError(f"column {column!r} holds {shown(value)}, which is not a list of words; {hint}")
    for position, word in enumerate(value):
        if not isinstance(word, str):
            raise RowError(f"column {column!r} holds {shown(word)} at position {position}, which is not a word")
    return tuple(map(clean, value))


def _identifier(column: str, value: object) -> DocId:
    name = _name(value)
    if name is None or (isinstance(name, int) and name not in INT64):
        raise RowError(f"id column {column!r} holds {shown(value)}; an id is a string or a 64-bit integer")
    return name


def _group(column: str, value: object) -> DocId | None:
    name = _name(value)
    if name is None and value is not None:
        raise RowError(f"document column {column!r} holds {shown(value)}; a document's name is a string or an integer")
    return name


def _name(value: object) -> DocId | None:
    if isinstance(value, str):
        return clean(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kept(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


def _labels(record: Mapping[str, Any], column: str | None, n_words: int) -> Mapping[str, Sequence[str | None]]:
    if column is None:
        return NOTHING
    value = record[column]
    if not isinstance(value, list):
        raise RowError(f"label column {column!r} holds {shown(value)}, which is not a list with one label per word")
    if len(value) != n_words:
        raise RowError(f"label column {column!r} has {len(value)} labels for {n_words} words; give each word one")
    return {"label": [None if label is None else clean(str(label)) for label in value]}


def n_values(raw: bytes, marks: bytes) -> int:
    """Return how often the bytes `marks` occur in a row outside double quotes, or anywhere if that is rare.

    Each value of a parsed row takes up to a hundred bytes of memory, however short it is: count them before parsing.
    """
    n_marks = sum(map(raw.count, marks))
    if n_marks <= linestreams.MAX_ROW_VALUES:
        return n_marks
    n_marks = is_quoted = 0
    for start in range(0, len(raw), linestreams.BLOCK_BYTES):
        block = np.frombuffer(raw, np.uint8, min(linestreams.BLOCK_BYTES, len(raw) - start), start)
        inside = (np.cumsum(block == ord('"')) + is_quoted) % 2
        n_marks += int(np.count_nonzero(np.isin(block, list(marks)) & (inside == 0)))
        is_quoted = int(inside[-1])
    return n_marks
