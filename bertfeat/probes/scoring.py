"""Predictions of a probe for rows, and their scores with confidence intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Task
from bertfeat.display import html_table
from bertfeat.errors import UserError
from bertfeat.heads import scores as metrics
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.bootstrap import Interval, Statistic, number_statistic, ranking_statistic, set_statistic
from bertfeat.heads.bootstrap import bootstrap as bootstrapped
from bertfeat.heads.scores import RANKING_METRICS, Scores, label_statistic, pair_labels, score_pairs, title_of
from bertfeat.heads.sequences import Sequences
from bertfeat.heads.targets import decide
from bertfeat.plots.charts import draw_confusion
from bertfeat.plots.tables import text_table
from bertfeat.probes.rows import LabelledRows
from bertfeat.ragged import run_of
from bertfeat.records import BoolArray, IntArray
from bertfeat.vectors.array import ArrayVectors, Vectors, chunks_of
from bertfeat.vectors.store import lengths_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows times classes up to which the scores of classes are kept, 256 MB of float32.
MOST_SCORES = 64_000_000


@dataclass(frozen=True, slots=True)
class ProbeScore:
    """Scores of a probe's predictions on a store, with bootstrap intervals by metric, if they were asked for.

    Rows without a vector are errors, or predictions of no labels; scores of numbers and `ranking` leave them out.
    `n_without_label` rows are left out because their label is null. `ranking` holds AUROC and average precision of
    heads that score classes.
    """

    scores: Scores
    intervals: Mapping[str, Interval]
    n_without_label: int
    ranking: Scores | None = None

    def __repr__(self) -> str:
        interval = self.intervals.get(self.metric)
        between = f" ({interval.low:.4f} to {interval.high:.4f})" if interval else ""
        return f"ProbeScore({self.metric} {self.value:.4f}{between}, {self.scores.n_rows} rows)"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        headers, parts = self.scores.table()
        return html_table(repr(self), *self._table()) + html_table(f"scores of each {headers[0]}", headers, parts)

    @property
    def metric(self) -> str:
        """The main score: R2 of numbers, macro F1 of sets of labels, entity F1 of tags, else accuracy."""
        return self.scores.metric

    @property
    def value(self) -> float:
        """The main score's value."""
        return self.values[self.metric]

    @property
    def values(self) -> dict[str, float]:
        """The values of all scores that are defined, by metric."""
        return {**self.scores.values, **(self.ranking.values if self.ranking else {})}

    def to_dict(self) -> dict[str, Any]:
        """Return all scores as JSON values."""
        return {
            "metric": self.metric,
            self.metric: self.value,
            **self.scores.to_dict(),
            "ranking": self.ranking and self.ranking.to_dict(),
            "intervals": {name: asdict(interval) for name, interval in self.intervals.items()},
            "n_without_label": self.n_without_label,
        }

    def confusion(self) -> Axes:
        """Draw `scores.confusion`; return matplotlib's axes, so that `.figure.savefig(FILE)` writes it."""
        if self.scores.confusion is None:
            raise UserError("there is no confusion of labels; the probe predicts numbers or sets of labels")
        return draw_confusion(self.scores.confusion.labels, self.scores.confusion.matrix)

    def lines(self) -> list[str]:
        """Return the scores as lines to read."""
        n_missing = 0 if self.scores.confusion is None else self.scores.n_without_vector
        missing = f", {n_missing} of them without a vector (counted as errors)" if n_missing else ""
        lines = [f"rows: {self.scores.n_rows}{missing}", "", *text_table(*self._table()).splitlines(), ""]
        drawn = defaultdict[tuple[float, int, int], list[str]](list)
        for name, found in self.intervals.items():
            drawn[found.level, found.n_resamples, found.n_units].append(title_of(name))
        for (level, n_resamples, n_units), names in drawn.items():
            which = f" of {', '.join(names)}" if len(drawn) > 1 else ""
            lines.append(f"{level:.0%} intervals{which}: {n_resamples} resamples of {n_units} documents")
        lines += [*self.scores.lines(), *(self.ranking.lines() if self.ranking else [])]
        if self.n_without_label:
            lines.append(f"rows without a label, left out: {self.n_without_label}")
        headers, parts = self.scores.table()
        return [*lines, "", *text_table(headers, parts).splitlines()] if len(parts) > 1 else lines

    def _table(self) -> tuple[list[str], list[list[object]]]:
        """Return headers, and the value of each score with the ends of its interval."""
        rows: list[list[object]] = []
        for name, value in {**self.scores.scores, **(self.ranking.scores if self.ranking else {})}.items():
            found = self.intervals.get(name)
            rows.append([title_of(name), value, found and found.low, found and found.high])
        return ["score", "value", "low", "high"], rows


def score_rows(
    probe: Probe, X: Vectors, rows: LabelledRows, *, bootstrap: bool | Sequence[str], ranks: bool = True
) -> ProbeScore:
    """Score a probe on labelled rows by the vectors `X` (n_with_vector, dim); see `score_predicted`.

    `ranks` is whether to score rankings too.
    """
    n_scores = X.shape[0] * len(probe.classes_)
    with_scores = ranks and n_scores <= MOST_SCORES
    found, scores = outputs(probe, X, rows.documents[rows.has_vector], with_scores=with_scores)
    guesses = np.zeros((len(rows.labels), *found.shape[1:]), found.dtype)
    guesses[rows.has_vector] = found
    score = score_predicted(
        rows.labels,
        guesses,
        probe.classes_,
        task=probe.task,
        scores=scores,
        lengths=rows.lengths,
        predicted=rows.has_vector,
        n_without_label=rows.n_without_label,
        bootstrap=bootstrap,
    )
    if n_scores <= MOST_SCORES or not ranks:
        return score
    note = f"AUROC and average precision are left out: {n_scores} scores of classes are more than {MOST_SCORES}"
    return replace(score, ranking=Scores(0, 0, {}, notes=[note]))


def outputs(
    probe: Probe, X: Vectors, documents: IntArray, *, with_scores: bool
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return predictions, and the scores of classes, (n_rows, n_classes), or (n_rows,) of the second of two.

    Predictions are labels or numbers (n_rows,), numbers (n_rows, n_targets), or bool (n_rows, n_labels) for sets of
    labels. Scores are None for no rows, and for heads that have none. `documents` are those of the rows, (n_rows,): the
    sequences of a tagger.
    """
    is_labels, has_probabilities = probe.task == Task.CLASSIFY, hasattr(probe, "predict_proba")
    scorer = probe.predict_proba if has_probabilities else getattr(probe, "decision_function", None)
    with_scores = with_scores and probe.task != Task.REGRESS
    flat = np.concatenate if probe.is_tagger else np.asarray
    chunks = chunks_of(X)
    if probe.is_tagger and isinstance(X, ArrayVectors):
        # The chunks of vectors in memory may end inside a sequence.
        chunks = iter([(range(X.shape[0]), X.whole())])
    predicted, scores = [], []
    for rows, vectors in chunks:
        lengths = lengths_of(documents[rows.start : rows.stop])
        part: Any = Sequences(vectors, lengths) if probe.is_tagger else vectors
        if with_scores and scorer is not None:
            scores.append(flat(scorer(part)))
        is_best = is_labels and has_probabilities and with_scores
        predicted.append(probe.classes_[scores[-1].argmax(axis=1)] if is_best else flat(probe.predict(part)))
    nothing = decide(probe.task, np.zeros((0, len(probe.classes_) or 1)), probe.classes_)
    return np.concatenate(predicted or [nothing]), np.concatenate(scores) if scores else None


def score_predicted(
    truth: npt.NDArray[Any],
    guesses: npt.NDArray[Any],
    classes: Labels,
    *,
    task: str = Task.CLASSIFY,
    scores: npt.NDArray[Any] | None = None,
    lengths: IntArray | None = None,
    predicted: BoolArray | None = None,
    n_without_label: int = 0,
    bootstrap: bool | Sequence[str],
) -> ProbeScore:
    """Score predictions for rows, of which those that are not `predicted`, bool (n_rows,), have no vector.

    Truth is labels (n_rows,), numbers (n_rows,) or (n_rows, n_targets), or tuples of labels (n_rows,); guesses are
    alike, but for tuples bool (n_rows, n_classes). `classes` are the sorted labels that training has seen. `scores` of
    classes are those of the predicted rows, (n_predicted, n_classes), or (n_predicted,) for the second of two.
    Intervals, of all scores or of those that `bootstrap` names, draw documents of `lengths` rows, (n_documents,).
    """
    predicted = np.ones(len(truth), np.bool_) if predicted is None else predicted
    n_missing = len(predicted) - int(predicted.sum())
    n_rows = np.ones(len(truth), np.int64) if lengths is None else lengths[lengths > 0]
    n_predicted = np.bincount(run_of(n_rows), weights=predicted).astype(np.int64)
    n_predicted = n_predicted[n_predicted > 0]
    statistic: Callable[[str], Statistic]
    if task == Task.REGRESS:
        targets = metrics.pair_numbers(truth[predicted], guesses[predicted])
        found = metrics.score_numbers(targets, n_missing)
        statistic = partial(number_statistic, targets=targets, lengths=n_predicted)
    elif task == Task.MULTILABEL:
        sets = metrics.pair_label_sets(truth, guesses & predicted[:, None], classes)
        found = metrics.score_label_sets(sets, classes, n_missing)
        statistic = partial(set_statistic, true=sets[1], predicted=sets[2], lengths=n_rows)
    else:
        pairs = pair_labels(truth, guesses, predicted)
        found = score_pairs(pairs, classes, lengths)
        statistic = partial(label_statistic, pairs=pairs, lengths=n_rows)
    ranking, of_rankings = None, statistic
    if scores is not None:
        rankings = metrics.pair_rankings(truth[predicted], scores, classes, are_sets=task == Task.MULTILABEL)
        ranking = metrics.score_rankings(rankings, n_missing)
        of_rankings = partial(ranking_statistic, classes=list(rankings.values()), lengths=n_predicted)
    score = ProbeScore(found, {}, n_without_label, ranking)
    known = dict.fromkeys([score.metric, *score.values])
    asked = known if bootstrap is True else [name for name in known if bootstrap and name in bootstrap]
    of_each = {name: of_rankings if name in RANKING_METRICS else statistic for name in asked}
    return replace(score, intervals={name: bootstrapped(of(name)) for name, of in of_each.items()})
