"""Predicted labels of rows, the columns beside them, and the file that they are written to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl

from bertfeat.choices import Level
from bertfeat.corpus import Reader
from bertfeat.durable.files import make_parents
from bertfeat.durable.placecheck import check_file
from bertfeat.durable.publication import publish_file
from bertfeat.errors import UserError, did_you_mean
from bertfeat.exports.framefiles import ENDINGS, frame_writer
from bertfeat.heads.base import Labels, Probe, require_same_kind
from bertfeat.heads.sequences import Sequences
from bertfeat.levels import LEVELS
from bertfeat.probes.config import LabelTable
from bertfeat.probes.learningrows import LabelSource, as_labels, find_labels, is_given
from bertfeat.records import BoolArray, Float32Array, IntArray
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, read_columns, row_columns
from bertfeat.vectors.array import ArrayVectors, Vectors, chunks_of

PREDICTION, PROBABILITY = "prediction", "probability"


def predict_rows(probe: Probe, X: Vectors, lengths: IntArray | None) -> tuple[Labels, Float32Array | None]:
    """Return the predicted label of each row, (n_rows,), and its probability, float32 (n_rows,), if the head has any.

    The vectors `X` (n_rows, dim) may be a stream whose chunks end between sequences, of `lengths` (n_sequences,) rows.
    """
    labels = np.empty(X.shape[0], probe.classes_.dtype)
    probabilities = np.empty(X.shape[0], np.float32) if probe.has_probabilities else None
    chunks = chunks_of(X)
    if probe.is_tagger and isinstance(X, ArrayVectors):
        # Its chunks may end inside a sequence.
        chunks = iter([(range(X.shape[0]), X.whole())])
    starts = np.concatenate([[0], np.cumsum(np.zeros(0, np.int64) if lengths is None else lengths)])
    for rows, vectors in chunks:
        part: Any = vectors
        if probe.is_tagger and lengths is not None:
            first, last = np.searchsorted(starts, [rows.start, rows.stop])
            part = Sequences(vectors, lengths[first:last])
        found = probe.predict(part) if probabilities is None else probe.predict_proba(part)
        values = np.concatenate(found) if probe.is_tagger else found
        span = slice(rows.start, rows.stop)
        if probabilities is None:
            labels[span] = values
        else:
            best = values.argmax(axis=1)
            labels[span] = probe.classes_[best]
            probabilities[span] = values[np.arange(len(best)), best]
    return labels, probabilities


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """The columns `shown` beside predictions, which may be of the documents, and the origin of gold labels among them.

    With `only_errors`, rows are left out that are right or have no gold label.
    """

    shown: tuple[str, ...]
    gold: LabelSource | None
    only_errors: bool

    @classmethod
    def of(
        cls,
        store: Store,
        place: str,
        level: Level,
        names: tuple[str, ...],
        gold: str | None,
        labels: LabelTable | None,
        *,
        only_errors: bool,
    ) -> Self:
        """Find the columns and the gold labels in a store, called `place` in messages."""
        source = None if gold is None else find_labels(store, level, gold, labels, place)
        there = [name for columns in row_columns(store, level) for name in columns]
        for name in (*names, *(() if gold is None else (gold,))):
            if name in (PREDICTION, PROBABILITY):
                raise UserError(f"{place}: column {name!r} has the name of a result of the probe; leave it out")
            if name not in there and name != gold:
                hint = did_you_mean(name, there) or f"columns are {', '.join(there)}"
                raise UserError(f"{place}: no column {name!r} at level {level}; {hint}")
        golds = () if gold is None else (gold,)
        return cls(tuple(dict.fromkeys([*LEVELS[level].names, *names, *golds])), source, only_errors)

    def read(self, shard: Store, level: Level, further: Sequence[str]) -> pl.DataFrame:
        """Return the shown and further columns of a shard's rows; rows that need no label have a null for it."""
        names = list(dict.fromkeys([*self.shown, *further]))
        if self.gold is None:
            return read_columns(shard, level, names)
        gold = self.gold.rows(shard).select(pl.when("is_candidate").then("label"))
        frame = read_columns(shard, level, [name for name in names if name != self.gold.name])
        return frame.with_columns(gold.to_series().alias(self.gold.name))

    def errors(self, frame: pl.DataFrame, classes: Labels, mine: str) -> tuple[BoolArray, int]:
        """Return bool (n_rows,), which predictions are wrong or missing, and the number of gold labels."""
        assert self.gold is not None
        given = is_given(frame[self.gold.name]).to_numpy()
        wrong = np.zeros(frame.height, np.bool_)
        if given.any():
            gold = as_labels(frame[self.gold.name].filter(given), self.gold.where)
            require_same_kind(gold, self.gold.where, classes, mine)
            wrong[given] = [a != b for a, b in zip(gold.tolist(), frame[PREDICTION].filter(given), strict=True)]
        return wrong, int(given.sum())


def kept_settings(level: Level, names: Sequence[str], gold: str | None, reader: type[Reader]) -> dict[str, Any]:
    """Return the settings of an extraction whose store has some columns, among them that of gold labels.

    Columns of a table are kept for documents; CoNLL has columns of words.
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


class Written(NamedTuple):
    """A written file: its path, its rows, those of them without a prediction, and the rows of each label.

    `n_set_aside` counts the rows of a corpus that could not be read (`bad_rows="quarantine"`) and are not in the file;
    `n_gold` the rows with a gold label, of which a file of errors has the wrong ones.
    """

    path: Path
    n_rows: int
    n_without: int
    counts: dict[Any, int]
    n_set_aside: int = 0
    n_gold: int | None = None


def check_output(path: str | Path, *, overwrite: bool) -> Path:
    """Return the path of a Parquet or CSV file to write, its folder made."""
    out = local_path(path, "a file of predictions")
    check_file(out, overwrite=overwrite, endings=ENDINGS)
    make_parents(out)
    return out


def write_frames(frames: Iterable[pl.DataFrame], path: Path) -> Written:
    """Write frames with equal columns as one Parquet or CSV file, in memory that stays flat."""
    counts: Counter[Any] = Counter()
    with publish_file(path) as sink, frame_writer(path, sink) as write:
        for frame in frames:
            counts.update(frame[PREDICTION].to_list())
            write(frame)
    n_without = counts.pop(None, 0)
    return Written(path, counts.total() + n_without, n_without, dict(counts))
