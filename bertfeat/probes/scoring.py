"""Scores of a probe on labelled rows, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertfeat.choices import Level
from bertfeat.display import html_table
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.bootstrap import Interval, bootstrap_interval
from bertfeat.heads.scores import Scores, score_labels
from bertfeat.probes.learningrows import LabelledRows
from bertfeat.probes.predictions import predict_rows
from bertfeat.probes.vectorstream import lengths_of
from bertfeat.records import BoolArray, IntArray
from bertfeat.reports.plots import draw_confusion
from bertfeat.vectors.array import Vectors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {"accuracy": "accuracy", "macro_f1": "macro F1", "entity_f1": "entity F1"}


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """Scores of a probe's predictions on a store.

    Attributes:
        scores: All scores; rows without a vector count as errors.
        metric: The main score: entity F1 for tags, else accuracy.
        intervals: Bootstrap intervals by metric; empty if they were not asked for.
        n_without_label: Rows left out because their label is null.
    """

    scores: Scores
    metric: str
    intervals: Mapping[str, Interval]
    n_without_label: int

    def __repr__(self) -> str:
        interval = self.intervals.get(self.metric)
        between = f" ({interval.low:.4f} to {interval.high:.4f})" if interval else ""
        return f"ProbeScore({self.metric} {self.value:.4f}{between}, {self.scores.n_rows} rows)"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows = []
        for name in [name for name in _TITLES if name != "entity_f1" or self.scores.entities]:
            found = self.intervals.get(name)
            rows.append((_TITLES[name], self.scores.value(name), found and found.low, found and found.high))
        labels = [(name, *scores) for name, scores in self.scores.per_class.items()]
        return html_table(repr(self), ["score", "value", "low", "high"], rows) + html_table(
            "scores of each label", ["label", "precision", "recall", "F1", "rows"], labels
        )

    @property
    def value(self) -> float:
        """The main score."""
        return self.scores.value(self.metric)

    def to_dict(self) -> dict[str, Any]:
        """Return all scores as JSON values."""
        entities = self.scores.entities
        return {
            "metric": self.metric,
            self.metric: self.value,
            **({} if entities is None else {"entity_f1": entities.f1}),
            **self.scores.to_dict(),
            "intervals": {name: asdict(interval) for name, interval in self.intervals.items()},
            "n_without_label": self.n_without_label,
        }

    def confusion(self) -> Axes:
        """Draw the confusion matrix; return matplotlib's axes, so that `.figure.savefig(FILE)` writes it.

        The numbers are those of `scores.confusion`. Rows without a prediction are not in it.

        Raises:
            UserError: matplotlib is not installed.
        """
        return draw_confusion(self.scores.confusion.labels, self.scores.confusion.matrix)

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


def score_labelled(probe: Probe, X: Vectors, labelled: LabelledRows, level: Level, *, bootstrap: bool) -> ProbeScore:
    """Score a probe on the rows that have a label.

    Args:
        probe: A fitted probe.
        X: The vectors of the rows that have one.
        labelled: The rows; those without a vector count as errors.
        level: Their level.
        bootstrap: Whether to compute intervals, which draw whole documents.

    Raises:
        UserError: There are no rows, or their labels are text and the probe's are not, or the reverse.
    """
    is_document, predicted = level is Level.SENTENCE, labelled.has_vector
    guesses = np.empty(len(labelled.labels), probe.classes_.dtype)
    lengths = None if is_document else lengths_of(labelled.documents[predicted])
    guesses[predicted] = predict_rows(probe, X, lengths).labels
    return score_predicted(
        labelled.labels,
        guesses,
        probe.classes_,
        lengths=None if is_document else lengths_of(labelled.documents),
        predicted=predicted,
        n_without_label=labelled.n_without_label,
        bootstrap=bootstrap,
    )


def score_predicted(
    labels: Labels,
    guesses: Labels,
    classes: Labels,
    *,
    lengths: IntArray | None,
    predicted: BoolArray,
    n_without_label: int = 0,
    bootstrap: bool,
) -> ProbeScore:
    """Score the predicted labels of rows.

    Args:
        labels: The true labels, (n_rows,).
        guesses: The predicted ones, (n_rows,).
        classes: The labels that training has seen.
        lengths: int64 (n_documents,): the rows of each document; None if each row is a document.
        predicted: bool (n_rows,): which rows have a prediction; the others count as errors.
        n_without_label: Rows that were left out because their label is null.
        bootstrap: Whether to compute intervals, which draw whole documents.

    Raises:
        UserError: There are no rows, or labels are text and the classes are not, or the reverse.
    """
    units: dict[str, Any] = {"lengths": lengths, "predicted": predicted}
    scores = score_labels(labels, guesses, classes, **units)
    metric = "accuracy" if scores.entities is None else "entity_f1"
    metrics = dict.fromkeys([metric, "accuracy", "macro_f1"]) if bootstrap else ()
    intervals = {name: bootstrap_interval(name, labels, guesses, **units) for name in metrics}
    return ProbeScore(scores, metric, intervals, n_without_label)
