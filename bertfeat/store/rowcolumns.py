"""Columns of a level's rows with those of their documents, where the sentence level is stored too."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError, did_you_mean
from bertfeat.store.reader import Store


def row_columns(store: Store, level: Level) -> tuple[list[str], list[str]]:
    """Return the names of a level's columns, without its vectors, and of the further columns of its documents."""
    own = [column.name for column in store.schema(level).columns]
    if level is Level.SENTENCE or Level.SENTENCE not in store.levels:
        return own, []
    return own, [column.name for column in store.schema(Level.SENTENCE).columns if column.name not in own]


def check_columns(store: Store, level: Level, names: Sequence[str]) -> None:
    """Check that columns are among `row_columns`.

    Raises:
        UserError: A column is unknown or holds vectors.
    """
    there = [name for names in row_columns(store, level) for name in names]
    for name in names:
        if name not in there:
            known = did_you_mean(name, there) or f"columns are {', '.join(there)}"
            raise UserError(f"{store.path}: no column {name!r} at level {level}; {known}")


def read_columns(store: Store, level: Level, names: Sequence[str]) -> pl.DataFrame:
    """Return some of `row_columns` for all rows of a level, in order.

    Raises:
        UserError: A column is unknown or holds vectors.
        StoreError: A part is missing or damaged.
    """
    check_columns(store, level, names)
    own, _ = row_columns(store, level)
    others = [name for name in names if name not in own]
    here = list(dict.fromkeys([*(name for name in names if name in own), *(["doc_id"] if others else [])]))
    frame = store.polars(level, here)
    if others:
        documents = store.polars(Level.SENTENCE, ["doc_id", *others])
        frame = frame.join(documents, on="doc_id", how="left", maintain_order="left")
    return frame.select(names)
