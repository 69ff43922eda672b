"""Rows of tables: the columns that settings name, and the checks of the values in them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bertfeat.config import ExtractConfig
from bertfeat.corpus.columns import kind_of, type_of
from bertfeat.corpus.content import NOTHING, WORD_SETTINGS, Content, RowError, clean
from bertfeat.errors import InputError, did_you_mean
from bertfeat.records import DocId

INT64 = range(-(2**63), 2**63)
# The settings that formats with columns follow, and those whose columns may hold lists.
TABLE_SETTINGS = ("text_pair_column", "id_column", "keep_columns", "document_column")
LIST_SETTINGS = (*TABLE_SETTINGS, *WORD_SETTINGS)
_COLUMN_SETTINGS = ("text_column", "text_pair_column", "id_column", "document_column", "label_column")


def needed_columns(config: ExtractConfig) -> tuple[str, ...]:
    """Return the columns of tabular input that are read, each once."""
    named = [getattr(config, setting) for setting in _COLUMN_SETTINGS]
    return tuple(dict.fromkeys((*(name for name in named if name is not None), *config.keep_columns)))


def nested(record: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column; `content.body` is a field of `content` unless a column has that very name.

    A field of null is null. `KeyError` says that there is no such column or field.
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


def check_columns(path: str, header: Sequence[str], config: ExtractConfig, hint: str = "") -> None:
    """Check that a file's header names each needed column once; `hint` says what else to do if it lacks one."""
    for name in needed_columns(config):
        count = header.count(name)
        if count == 0:
            raise InputError(missing_column(name, header, config, hint), path=path)
        if count > 1:
            raise InputError(f"column {name!r} appears {count} times in the header; rename all but one", path=path)


def missing_column(name: str, columns: Iterable[str], config: ExtractConfig, hint: str = "") -> str:
    """Return the reason for a missing column: its name, the nearest column or those there are, and what to do."""
    setting = next((s for s in reversed(_COLUMN_SETTINGS) if getattr(config, s) == name), None)
    # A column that holds fields is not what a setting names. Without a header, these are the fields of the first row.
    columns = list(columns)
    parents = {name.rpartition(".")[0] for name in columns}
    names = [textwrap.shorten(name, 40, placeholder="...") for name in columns if name not in parents]
    there = f"columns are {', '.join(names[:20] + ['...'] * (len(names) > 20)) or 'none'}"
    if setting is None:
        # A further column, which other calls than `extract` do not take as `keep_columns`.
        return f"no column {name!r} to keep; {did_you_mean(name, names) or there + hint}"
    if name == getattr(type(config), setting):
        return f"no column {name!r}; {there}; pass `{setting}`{hint}"
    return f"no column {name!r} for `{setting}`; {did_you_mean(name, names) or there + hint}"


def content_of(values: Mapping[str, Any], config: ExtractConfig) -> Content:
    """Make the content of a tabular row from its columns. A kept column that the row lacks is left out."""

    def value(name: str) -> Any:
        try:
            return nested(values, name)
        except KeyError:
            raise RowError(missing_column(name, names_in(values), config)) from None

    column, pair_column, labels = config.text_column, config.text_pair_column, config.label_column
    words = _words(column, value(column)) if config.is_split_into_words else None
    pair = value(pair_column) if pair_column else None
    document = value(config.document_column) if config.document_column else None
    return Content(
        text=_text("text_column", column, value(column)) if words is None else " ".join(words),
        text_pair=None if pair is None else _text("text_pair_column", str(pair_column), pair),
        words=words,
        doc_id=_name(config.id_column, value(config.id_column)) if config.id_column else None,
        group=None if document is None else _name(str(config.document_column), document),
        kept=dict(_kept(values, config.keep_columns)) if config.keep_columns else NOTHING,
        annotations=NOTHING if words is None or labels is None else _labels(labels, value(labels), len(words)),
    )


def shown(value: object) -> str:
    """Return a value as messages show it, cut to 40 characters."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _text(setting: str, column: str, value: object) -> str:
    if isinstance(value, str):
        return clean(value)
    hint = f"write it as a string, or pass another `{setting}`"
    if isinstance(value, list):
        hint = "pass `is_split_into_words` for lists of words"
    elif isinstance(value, Mapping) and value:
        hint = f"name a field of it: `{setting}='{column}.{next(iter(value))}'`"
    raise RowError(f"column {column!r} holds {shown(value)}, which is not text; {hint}")


def _words(column: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        hint = "drop `is_split_into_words` for texts"
        raise RowError(f"column {column!r} holds {shown(value)}, which is not a list of words; {hint}")
    for position, word in enumerate(value):
        if not isinstance(word, str):
            raise RowError(f"column {column!r} holds {shown(word)} at position {position}, which is not a word")
    return tuple(map(clean, value))


def _name(column: str, value: object) -> DocId:
    """Return the value of an id or of a document's name."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int) and not isinstance(value, bool) and value in INT64:
        return value
    raise RowError(f"column {column!r} holds {shown(value)}; an id is a string or a 64-bit integer")


def _kept(values: Mapping[str, Any], names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for name in names:
        with suppress(KeyError):
            value = nested(values, name)
            yield name, _clean(value)


def _clean(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def _labels(column: str, value: object, n_words: int) -> Mapping[str, Sequence[str | None]]:
    if not isinstance(value, list) or len(value) != n_words:
        raise RowError(f"label column {column!r} holds {shown(value)}, which is not a list of {n_words} labels")
    return {"label": [None if label is None else clean(str(label)) for label in value]}


def check_plain(name: str, value: object) -> None:
    """Check that a value of JSON can be kept in a column: a plain one, or a list of them."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, list | dict) for item in items):
        raise RowError(f"column {name!r} holds {shown(value)}; keep plain values, lists of them, or a field")
    if type_of({kind_of(item) for item in items} - {None}) is None:
        raise RowError(f"column {name!r} holds {shown(value)}; give the values of a list one type")
    if any(isinstance(item, int) and item not in INT64 for item in items):
        raise RowError(f"column {name!r} holds {shown(value)}, which is beyond 64 bits; write it as a string")
