"""Predictions of a probe for rows, and their scores with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bertfeat.display import html_table
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.scores import Interval, Scores, bootstrap_interval, score_labels
from bertfeat.heads.sequences import Sequences
from bertfeat.plots.charts import draw_confusion
from bertfeat.probes.rows import LabelledRows
from bertfeat.ragged import starts_of
from bertfeat.records import BoolArray, Float32Array, IntArray
from bertfeat.vectors.array import ArrayVectors, Vectors, chunks_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {"accuracy": "accuracy", "macro_f1": "macro F1", "entity_f1": "entity F1"}


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """Scores of a probe's predictions on a store, with bootstrap intervals by metric, if they were asked for.

    Rows without a vector count as errors; `n_without_label` rows are left out because their label is null.
    """

    scores: Scores
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
        for name, value in self.values.items():
            found = self.intervals.get(name)
            rows.append((_TITLES[name], value, found and found.low, found and found.high))
        labels = [(name, *scores) for name, scores in self.scores.per_class.items()]
        return html_table(repr(self), ["score", "value", "low", "high"], rows) + html_table(
            "scores of each label", ["label", "precision", "recall", "F1", "rows"], labels
        )

    @property
    def metric(self) -> str:
        """The main score: entity F1 for tags, else accuracy."""
        return "accuracy" if self.scores.entities is None else "entity_f1"

    @property
    def value(self) -> float:
        """The main score's value."""
        return self.scores.value(self.metric)

    @property
    def values(self) -> dict[str, float]:
        """The values of all scores: accuracy, macro_f1 and, for tags, entity_f1."""
        return {name: self.scores.value(name) for name in dict.fromkeys(["accuracy", "macro_f1", self.metric])}

    def to_dict(self) -> dict[str, Any]:
        """Return all scores as JSON values."""
        return {
            "metric": self.metric,
            self.metric: self.value,
            **self.scores.to_dict(),
            "intervals": {name: asdict(interval) for name, interval in self.intervals.items()},
            "n_without_label": self.n_without_label,
        }

    def confusion(self) -> Axes:
        """Draw `scores.confusion`; return matplotlib's axes, so that `.figure.savefig(FILE)` writes it."""
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


def score_rows(probe: Probe, X: Vectors, rows: LabelledRows, *, bootstrap: bool) -> ProbeScore:
    """Score a probe on labelled rows by the vectors `X` (n_with_vector, dim); rows without a vector are errors."""
    guesses = np.empty(len(rows.labels), probe.classes_.dtype)
    guesses[rows.has_vector] = predict_rows(probe, X, rows.with_vector.lengths)[0]
    return score_predicted(
        rows.labels,
        guesses,
        probe.classes_,
        lengths=rows.lengths,
        predicted=rows.has_vector,
        n_without_label=rows.n_without_label,
        bootstrap=bootstrap,
    )


def predict_rows(probe: Probe, X: Vectors, lengths: IntArray | None) -> tuple[Labels, Float32Array | None]:
    """Return the label of each row, and its probability if the head has any; a tagger needs sequences' `lengths`."""
    labels = np.empty(X.shape[0], probe.classes_.dtype)
    probabilities = np.empty(X.shape[0], np.float32) if hasattr(probe, "predict_proba") else None
    chunks = chunks_of(X)
    if probe.is_tagger and isinstance(X, ArrayVectors):
        # The chunks of vectors in memory may end inside a sequence.
        chunks = iter([(range(X.shape[0]), X.whole())])
    starts = starts_of(np.zeros(0, np.int64) if lengths is None else lengths)
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
    """Score predicted labels (n_rows,); see `score_labels`. Intervals draw documents of `lengths`, (n_documents,)."""
    units: dict[str, Any] = {"lengths": lengths, "predicted": predicted}
    score = ProbeScore(score_labels(labels, guesses, classes, **units), {}, n_without_label)
    metrics = dict.fromkeys([score.metric, *score.values]) if bootstrap else ()
    return replace(score, intervals={name: bootstrap_interval(name, labels, guesses, **units) for name in metrics})
