"""Scores of a probe on labelled rows, with intervals that say how far they may be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertfeat.config import Level
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.bootstrap import Interval, bootstrap_interval
from bertfeat.heads.matrices import Matrix
from bertfeat.heads.scores import Scores, primary_metric, score_rows, score_sequences
from bertfeat.probes.learningrows import LabelledRows
from bertfeat.probes.predictions import predict_rows
from bertfeat.probes.vectorstream import lengths_of

_TITLES = {"accuracy": "accuracy", "macro_f1": "macro F1", "micro_f1": "micro F1", "entity_f1": "entity F1"}


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """How good a probe's predictions are on a store.

    Attributes:
        scores: All scores; rows without a vector count as errors.
        metric: The score that counts: entity F1 for tags, else accuracy.
        intervals: Bootstrap intervals by metric; none where they were not asked for.
        n_without_label: Rows left out because their label is null.
    """

    scores: Scores
    metric: str
    intervals: Mapping[str, Interval]
    n_without_label: int

    @property
    def value(self) -> float:
        """The score that counts."""
        return self.scores.value(self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Return all scores as JSON values."""
        entities = self.scores.entities
        return {
            "metric": self.metric,
            self.metric: self.value,
            **({} if entities is None else {"entity_f1": entities.f1}),
            **self.scores.to_dict(),
            "intervals": {name: interval.to_dict() for name, interval in self.intervals.items()},
            "n_without_label": self.n_without_label,
        }

    def lines(self) -> list[str]:
        """Return the scores as lines to read."""
        lines = self.scores.lines()
        if self.n_without_label:
            lines.append(f"rows without a label, left out: {self.n_without_label}")
        if self.intervals:
            some = next(iter(self.intervals.values()))
            lines += ["", f"{some.level:.0%} intervals ({some.n_resamples} resamples of {some.n_units} documents)"]
            lines += [f"{_TITLES[name]:<9} {i.low:.4f} to {i.high:.4f}" for name, i in self.intervals.items()]
        return lines


def score_labelled(
    probe: Probe,
    X: Matrix,  # noqa: N803
    labelled: LabelledRows,
    level: Level,
    *,
    bootstrap: bool,
) -> ProbeScore:
    """Score a probe on the rows that have a label.

    Args:
        probe: A fitted probe.
        X: The vectors of those of the rows that have one.
        labelled: The rows; those without a vector count as errors.
        level: Their level.
        bootstrap: Whether to give intervals; whole documents are drawn.

    Raises:
        UserError: No row has a label, or labels are of another kind than the probe's.
    """
    truth, has_vector = labelled.labels, labelled.has_vector
    if truth is None or not len(truth):
        raise UserError("no row has a label; there is nothing to score")
    is_document = level is Level.SENTENCE
    predicted = predict_rows(probe, X, None if is_document else lengths_of(labelled.documents[has_vector]))
    guesses = np.empty(len(truth), predicted.labels.dtype)
    guesses[has_vector] = predicted.labels
    lengths = None if is_document else lengths_of(labelled.documents)
    if lengths is None:
        scores = score_rows(truth, guesses, probe.classes_, predicted=has_vector)
    else:
        scores = score_sequences(truth, guesses, lengths, probe.classes_, predicted=has_vector)
    metrics = _metrics(probe.classes_, scores) if bootstrap else []
    intervals = {
        name: bootstrap_interval(name, truth, guesses, lengths=lengths, predicted=has_vector) for name in metrics
    }
    return ProbeScore(scores, _primary(probe.classes_, scores), intervals, labelled.n_without_label)


def _primary(classes: Labels, scores: Scores) -> str:
    metric = primary_metric(classes.tolist())
    # A sentence has no entities, whatever its labels look like.
    return metric if scores.entities is not None or metric != "entity_f1" else "accuracy"


def _metrics(classes: Labels, scores: Scores) -> list[str]:
    return list(dict.fromkeys([_primary(classes, scores), "accuracy", "macro_f1"]))
