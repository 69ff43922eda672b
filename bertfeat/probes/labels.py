"""Labels of the rows of a level: from a column of the store, of its words, or from a table beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import polars as pl

from bertfeat.choices import Level
from bertfeat.corpus.tables import read_table
from bertfeat.durable.files import os_errors
from bertfeat.errors import UserError, did_you_mean
from bertfeat.levels import LEVELS
from bertfeat.store.reader import Store

_WORD_KEYS = list(LEVELS[Level.WORD].keys)
#: Whether a token is the first of a word.
IS_FIRST_TOKEN = pl.col("word_index").is_not_null() & pl.struct(_WORD_KEYS).is_first_distinct()
# Columns that bertfeat writes; others came with the corpus, and may be labels.
_OWN = {column.name for entry in LEVELS.values() for column in entry.columns}

LabelTable = str | Path | pl.DataFrame

_TYPES: dict[str, type[pl.DataType]] = {"int64": pl.Int64, "int32": pl.Int32, "string": pl.String}


@dataclass(frozen=True, slots=True)
class LabelSource:
    """The origin of labels.

    Attributes:
        name: The column.
        level: The level of the store that has the column; None if a table has it.
        table: A table of keys and labels, of the store's types; its keys are unique.
        where: Its name, for messages.
    """

    name: str
    level: Level | None
    table: pl.DataFrame | None
    where: str


def find_labels(store: Store, level: Level, name: str, labels: LabelTable | None) -> LabelSource:
    """Find the labels of a level.

    Args:
        store: The store.
        level: The level whose rows are labelled.
        name: The column with the labels.
        labels: A file or frame with `doc_id`, at word and token level `word_index` or `token_index`, and the column;
            None for a column of the store.

    Raises:
        UserError: There is no such column, or the table has a key twice.
    """
    if labels is not None:
        where = "a frame" if isinstance(labels, pl.DataFrame) else str(labels)
        table = _checked(_read_table(labels, {*LEVELS[level].keys, name}), store, level, name, where)
        return LabelSource(name, None, table, f"{where}: column {name!r}")
    where = f"{store.path}: column {name!r}"
    levels = [level, Level.WORD] if level is Level.TOKEN and Level.WORD in store.levels else [level]
    columns = {found: [column.name for column in store.schema(found).columns] for found in levels}
    for found, names in columns.items():
        if name in names:
            return LabelSource(name, found, None, where)
    there = [column for names in columns.values() for column in names]
    hint = did_you_mean(name, there) or _hint(level, there)
    raise UserError(f"{store.path}: no label column {name!r} at level {level}; {hint}")


def label_rows(shard: Store, level: Level, source: LabelSource) -> pl.DataFrame:
    """Return the rows of one shard: `doc_id`, `label` (null if a row has none), `is_candidate`.

    At token level with labels of words, only the first token of a word is a candidate. Otherwise every row is.
    """
    keys = list(LEVELS[level].keys)
    label = pl.col(source.name).alias("label")
    if source.table is not None:
        rows = columns_of(shard, level, keys).join(source.table, on=keys, how="left", maintain_order="left")
        return rows.select("doc_id", label, pl.lit(True).alias("is_candidate"))
    if source.level is level:
        rows = columns_of(shard, level, list(dict.fromkeys(["doc_id", source.name])))
        return rows.select("doc_id", label, pl.lit(True).alias("is_candidate"))
    words = columns_of(shard, Level.WORD, [*_WORD_KEYS, source.name])
    tokens = columns_of(shard, level, _WORD_KEYS)
    rows = tokens.with_columns(is_candidate=IS_FIRST_TOKEN).join(
        words, on=_WORD_KEYS, how="left", maintain_order="left"
    )
    return rows.select("doc_id", label, "is_candidate")


def none_matches(store: Store, level: Level, source: LabelSource) -> UserError:
    """Return the error for a table of labels without a row of the store."""
    assert source.table is not None
    first = columns_of(store.shard(0), level, ["doc_id"])["doc_id"].head(1).to_list()
    example = f" (which has for example {first[0]!r})" if first else ""
    return UserError(f"{source.where}: none of its {source.table.height} rows is for a row of {store.path}{example}")


def columns_of(store: Store, level: Level, names: Sequence[str]) -> pl.DataFrame:
    """Return columns of a level as a frame.

    Raises:
        StoreError: A part is missing or damaged.
    """
    return cast("pl.DataFrame", pl.from_arrow(store.arrow(level, names)))


def key_types(store: Store, level: Level, names: Sequence[str]) -> dict[str, pl.DataType]:
    """Return the types of columns that identify rows."""
    kinds = {column.name: column.type for column in store.schema(level).columns}
    return {name: _TYPES[kinds[name]]() for name in names}


def _hint(level: Level, columns: list[str]) -> str:
    if found := [column for column in dict.fromkeys(columns) if column not in _OWN]:
        return f"columns that could be labels are {', '.join(found)}"
    option = "`keep_columns`" if level is Level.SENTENCE else "`label_column`"
    return f"none came with the corpus; extract with {option}, or pass labels with `labels`"


@os_errors(UserError)
def _read_table(labels: LabelTable, needed: set[str]) -> pl.DataFrame:
    if isinstance(labels, pl.DataFrame):
        return labels
    if not isinstance(labels, str | Path):
        raise UserError(f"labels are a {type(labels).__name__}; pass a file or a polars DataFrame")
    path = Path(labels)
    if not path.is_file():
        raise UserError(f"{path}: no such file; pass a .csv, .tsv, .jsonl or .parquet with doc_id and labels")
    return read_table(str(path), needed)


def _checked(table: pl.DataFrame, store: Store, level: Level, name: str, where: str) -> pl.DataFrame:
    """Return the keys and the label of a table, of the store's types, checked against the store."""
    keys = LEVELS[level].keys
    for column in (*keys, name):
        if column not in table.columns:
            there = did_you_mean(column, table.columns) or f"columns are {', '.join(table.columns) or 'none'}"
            raise UserError(f"{where}: no column {column!r}; {there}")
    types = key_types(store, level, keys)
    table = table.select(*keys, name)
    for key in keys:
        table = _cast(table, key, types[key], where)
    if table.select(keys).is_duplicated().any():
        *first, times = table.group_by(keys, maintain_order=True).len().filter(pl.col("len") > 1).row(0)
        named = ", ".join(f"{name} {value!r}" for name, value in zip(keys, first, strict=True))
        raise UserError(f"{where}: {named} occurs {times} times; label it once")
    return table


def _cast(table: pl.DataFrame, key: str, kind: pl.DataType, where: str) -> pl.DataFrame:
    if table[key].dtype.is_float() or table[key].dtype.is_nested():
        raise UserError(f"{where}: {key} is of type {table[key].dtype}; write whole numbers or strings")
    cast = table[key].cast(kind, strict=False)
    wrong = table[key].filter(cast.is_null())
    if len(wrong):
        raise UserError(f"{where}: {key} {wrong[0]!r} is not {'a whole number' if kind.is_integer() else 'an id'}")
    return table.with_columns(cast)
