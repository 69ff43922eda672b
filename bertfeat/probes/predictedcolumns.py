"""Columns beside predictions: those of the store and its documents, and gold labels, by which errors are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bertfeat.choices import Level
from bertfeat.corpus import Reader
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, require_same_kind
from bertfeat.levels import LEVELS
from bertfeat.probes.labels import LabelSource, label_rows, none_matches
from bertfeat.probes.learningrows import as_labels, is_given
from bertfeat.records import BoolArray
from bertfeat.store.reader import Store, check_columns, read_columns

PREDICTION, PROBABILITY = "prediction", "probability"


@dataclass(frozen=True, slots=True)
class Beside:
    """The columns that are asked for beside predictions.

    Attributes:
        names: Columns of the level or of its documents, after those that identify a row.
        gold: The origin of gold labels, a further column where `names` lacks it; None for none.
        only_errors: Whether to leave out rows that are right or have no gold label.
    """

    names: tuple[str, ...] = ()
    gold: LabelSource | None = None
    only_errors: bool = False

    def check(self, store: Store, level: Level) -> None:
        """Refuse columns that the store lacks, or that have the name of a result.

        Raises:
            UserError: The message names the column.
        """
        gold = () if self.gold is None else (self.gold.name,)
        for name in (*self.names, *gold):
            if name in (PREDICTION, PROBABILITY):
                raise UserError(f"{store.path}: column {name!r} has the name of a result of the probe; leave it out")
        check_columns(store, level, [name for name in self.names if name not in gold])

    def shown(self, level: Level) -> list[str]:
        """Return the names of the columns before the prediction."""
        gold = () if self.gold is None else (self.gold.name,)
        return list(dict.fromkeys([*LEVELS[level].names, *self.names, *gold]))

    def read(self, shard: Store, level: Level, further: Sequence[str]) -> pl.DataFrame:
        """Return the shown and further columns of a shard's rows; rows that need no label have a null for it.

        Raises:
            StoreError: A part is missing or damaged.
        """
        names = list(dict.fromkeys([*self.shown(level), *further]))
        if self.gold is None:
            return read_columns(shard, level, names)
        gold = label_rows(shard, level, self.gold).select(pl.when("is_candidate").then("label"))
        frame = read_columns(shard, level, [name for name in names if name != self.gold.name])
        return frame.with_columns(gold.to_series().alias(self.gold.name))

    def errors(self, frame: pl.DataFrame, classes: Labels, mine: str) -> tuple[BoolArray, int]:
        """Return bool (n_rows,), which predictions are wrong or missing, and the number of gold labels.

        Args:
            frame: Predictions with gold labels.
            classes: The classes of the probe.
            mine: The name of the probe, for messages.

        Raises:
            UserError: The gold labels are numbers and those of the probe texts, or the reverse.
        """
        assert self.gold is not None
        given = is_given(frame[self.gold.name]).to_numpy()
        wrong = np.zeros(frame.height, np.bool_)
        if given.any():
            gold = as_labels(frame[self.gold.name].filter(given), self.gold.where)
            require_same_kind(gold, self.gold.where, classes, mine)
            wrong[given] = [a != b for a, b in zip(gold.tolist(), frame[PREDICTION].filter(given), strict=True)]
        return wrong, int(given.sum())

    def none_given(self, store: Store, level: Level) -> UserError:
        """Return the error for a store without a gold label."""
        assert self.gold is not None
        if self.gold.table is not None:
            return none_matches(store, level, self.gold)
        return UserError(f"{self.gold.where}: no row at level {level} has a label; there are no errors to find")


def names_in(columns: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns, from a list or a text with commas, each once."""
    listed = columns.split(",") if isinstance(columns, str) else columns
    return tuple(dict.fromkeys(name.strip() for name in listed if name.strip()))


def kept_settings(level: Level, names: Sequence[str], gold: str | None, reader: type[Reader]) -> dict[str, Any]:
    """Return the settings of an extraction whose store has some columns.

    Args:
        level: The level of the predictions.
        names: The columns.
        gold: The column with the gold labels; None for none.
        reader: The reader of the corpus. Columns of a table are kept for documents; CoNLL has columns of words.

    Raises:
        UserError: The corpus has no columns.
    """
    own = {column.name for column in LEVELS[level].columns}
    of_documents = {column.name for column in LEVELS[Level.SENTENCE].columns} - own
    of_input = [name for name in names if name not in own | of_documents and name != gold]
    wanted = [*of_input, *([] if gold is None else [gold])]
    if wanted and not (reader.has_columns or reader.has_words):
        what = "leave it out of `columns`" if of_input else "pass gold labels with `labels`, or do not ask for them"
        raise UserError(f"the input is {reader.format}, which has no column {wanted[0]!r}; {what}")
    kept = (wanted if level is Level.SENTENCE else of_input) if reader.has_columns else ()
    levels = {level}
    if kept or not of_documents.isdisjoint(names):
        levels.add(Level.SENTENCE)
    if gold is not None and level is Level.TOKEN:
        levels.add(Level.WORD)
    return {"keep_columns": tuple(kept), "levels": tuple(levels)}
