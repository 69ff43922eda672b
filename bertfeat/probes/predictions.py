"""Columns beside predictions, gold labels among them, and the file that predictions are written to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl

from bertfeat.choices import Level, Task
from bertfeat.corpus import Reader
from bertfeat.durable.files import make_parents
from bertfeat.durable.output_check import check_file
from bertfeat.durable.publication import publish_file
from bertfeat.errors import UserError
from bertfeat.exports.frame_files import ENDINGS, frame_writer
from bertfeat.heads.base import Labels, Probe, check_labels, require_same_kind
from bertfeat.levels import LEVELS, WORDS
from bertfeat.probes.rows import LabelSource
from bertfeat.probes.scoring import outputs
from bertfeat.probes.targets import is_given
from bertfeat.records import IntArray
from bertfeat.storage import local_path
from bertfeat.store.reader import Store, check_columns, read_columns
from bertfeat.vectors.array import Vectors

PREDICTION, PROBABILITY = "prediction", "probability"
_TYPES: dict[str, type[pl.DataType]] = {"U": pl.String, "b": pl.Boolean, "i": pl.Int64, "u": pl.Int64}


@dataclass(slots=True)
class OutputColumns:
    """The columns beside predictions, which may be of the documents, and the origin of gold labels among them."""

    level: Level
    shown: tuple[str, ...]
    gold: LabelSource | None
    n_gold: int = 0  # gold labels that predictions were compared with

    @classmethod
    def of(cls, store: Store, level: Level, names: Sequence[str], gold: LabelSource | None, place: str) -> Self:
        """Find the columns in a store, called `place` in messages."""
        golds = [] if gold is None else [gold.name]
        shown = dict.fromkeys([*LEVELS[level].names, *names, *golds])
        for name in (PREDICTION, PROBABILITY):
            if name in shown:
                raise UserError(f"{place}: column {name!r} has the name of a result of the probe; leave it out")
        check_columns(store, level, [name for name in names if name not in golds], place)
        return cls(level, tuple(shown), gold)

    def read(self, shard: Store, further: Sequence[str]) -> pl.DataFrame:
        """Return the shown and further columns of a shard's rows; rows that need no label have a null for it."""
        names = list(dict.fromkeys([*self.shown, *further]))
        if self.gold is None:
            return read_columns(shard, self.level, names)
        gold = self.gold.rows(shard).select(pl.when("is_candidate").then("label"))
        frame = read_columns(shard, self.level, [name for name in names if name != self.gold.name])
        return frame.with_columns(gold.to_series().alias(self.gold.name))

    def errors(self, frame: pl.DataFrame, classes: Labels, mine: str) -> pl.DataFrame:
        """Return the rows whose gold label is not the prediction; a row without a prediction is one of them."""
        assert self.gold is not None
        found = frame.filter(is_given(frame[self.gold.name]))
        if not found.height:
            return found
        self.n_gold += found.height
        gold = check_labels(found[self.gold.name].to_numpy(), what=self.gold.where)
        require_same_kind(gold, self.gold.where, classes, mine)
        return found.filter([a != b for a, b in zip(gold.tolist(), found[PREDICTION], strict=True)])


def most_confident_first(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return frames as one, by probability, the highest first; equal ones keep their order, rows without one are last.

    Rows without a prediction are the very last.
    """
    is_last = pl.col(PREDICTION).is_null()
    return pl.concat(frames).sort(is_last, PROBABILITY, descending=[False, True], nulls_last=True, maintain_order=True)


def predict_rows(probe: Probe, X: Vectors, documents: IntArray) -> pl.DataFrame:
    """Return the prediction for each row and its probability, null for heads that have none; see `outputs`.

    Several numbers or labels of a row are a list; each label has its probability.
    """
    labels, scores = outputs(probe, X, documents, with_scores=hasattr(probe, "predict_proba"))
    values: Any = labels
    chances: Any = np.full(len(labels), None) if scores is None else scores.max(axis=1)
    kinds: list[Any] = [pl.Float64 if probe.task == Task.REGRESS else _TYPES[probe.classes_.dtype.kind], pl.Float32]
    if probe.task == Task.MULTILABEL:
        values, kinds = [probe.classes_[has].tolist() for has in labels], [pl.List(kind) for kind in kinds]
        if scores is not None:
            chances = [of_row[has].tolist() for of_row, has in zip(scores, labels, strict=True)]
    elif labels.ndim == 2:
        values, kinds[0] = labels.tolist(), pl.List(pl.Float64)
    return pl.DataFrame([pl.Series(PREDICTION, values, kinds[0]), pl.Series(PROBABILITY, chances, kinds[1])])


def kept_settings(level: Level, names: Sequence[str], gold: str | None, reader: type[Reader]) -> dict[str, Any]:
    """Return the settings of an extraction whose store has some columns, among them that of gold labels."""
    own = {column.name for column in LEVELS[level].columns}
    of_documents = {column.name for column in LEVELS[Level.SENTENCE].columns} - own
    of_input = [name for name in names if name not in own | of_documents and name != gold]
    wanted = [*of_input, *([] if gold is None else [gold])]
    if wanted and not (reader.has_columns or reader.has_words):
        what = "leave it out of `columns`" if of_input else "pass gold labels with `labels`, or do not ask for them"
        raise UserError(f"the input is {reader.format}, which has no column {wanted[0]!r}; {what}")
    kept = (of_input if level in WORDS else wanted) if reader.has_columns else ()
    levels = {level}
    if (kept and level in WORDS) or not of_documents.isdisjoint(names):
        levels.add(Level.SENTENCE)
    if gold is not None and level is Level.TOKEN:
        levels.add(Level.WORD)
    return {"keep_columns": tuple(kept), "levels": tuple(levels)}


class Written(NamedTuple):
    """A written file of predictions."""

    path: Path
    n_rows: int
    n_without: int  # rows without a prediction
    counts: dict[Any, int]  # the rows of each label; empty for numbers
    n_set_aside: int = 0  # rows of a corpus that could not be read (`bad_rows="quarantine"`), not in the file
    n_gold: int | None = None  # rows with a gold label, of which a file of errors has the wrong ones


def check_output(path: str | Path, *, overwrite: bool) -> Path:
    """Return the path of a Parquet or CSV file to write, its folder made."""
    out = local_path(path, "a file of predictions")
    check_file(out, overwrite=overwrite, endings=ENDINGS)
    make_parents(out)
    return out


def write_frames(frames: Iterable[pl.DataFrame], path: Path) -> Written:
    """Write frames with equal columns as one Parquet or CSV file, in memory that stays flat."""
    counts: Counter[Any] = Counter()
    n_rows = n_without = 0
    with publish_file(path) as sink, frame_writer(path, sink) as write:
        for frame in frames:
            predicted = frame[PREDICTION]
            n_rows, n_without = n_rows + frame.height, n_without + predicted.null_count()
            if predicted.dtype not in (pl.Float64, pl.List(pl.Float64)):
                labels = predicted.explode() if predicted.dtype.is_nested() else predicted
                counts.update(labels.drop_nulls().to_list())
            write(frame)
    return Written(path, n_rows, n_without, dict(counts))
