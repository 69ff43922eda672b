"""Scores of labels, and of all tasks on dev; rows without a vector or of labels unseen in training are errors."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.metrics import cohen_kappa_score

from bertfeat.choices import Task
from bertfeat.display import printable
from bertfeat.errors import UserError
from bertfeat.heads import metrics
from bertfeat.heads.base import DEV_METRICS, Labels, check_labels, codes_of, require_same_kind
from bertfeat.heads.bootstrap import Statistic, mean_of_fractions, set_statistic
from bertfeat.heads.entities import OUTSIDE, LabelScores, entity_scores, entity_sets, is_tag_scheme
from bertfeat.heads.metrics import Confusion, Scores
from bertfeat.heads.sequences import flatten_labels
from bertfeat.records import BoolArray, IntArray

METRICS = DEV_METRICS[Task.CLASSIFY]


class Pairs(NamedTuple):
    """True and predicted labels of rows, int64 (n_rows,), as indices of the sorted `labels` that occur."""

    labels: Labels
    true: IntArray
    predicted: IntArray  # the number of labels where there is no prediction, which is always wrong


def score_pairs(pairs: Pairs, classes: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Scores:
    """Score pairs of labels, with `lengths` (n_sequences,) and tags also entities.

    `classes` are the labels that training has seen.
    """
    known = np.unique(classes)
    require_same_kind(pairs.labels, "y_true", known, "the probe")
    is_tagged = lengths is not None and is_tag_scheme(known.tolist())
    labels, counts = pairs.labels.tolist(), _counts(pairs)
    totals = np.stack(_totals(counts), axis=1).tolist()
    per_class = {label: LabelScores.of(*of_label) for label, of_label in zip(labels, totals, strict=True)}
    is_unseen = zip(labels, codes_of(pairs.labels, known) < 0, strict=True)
    unseen = {label: per_class[label].support for label, is_new in is_unseen if is_new and per_class[label].support}
    shown = ", ".join(f"{printable(str(label))} ({count} rows)" for label, count in unseen.items())
    scores: dict[str, float | None] = {"accuracy": float(np.mean(pairs.true == pairs.predicted))}
    scores["macro_f1"] = statistics.fmean(scores.f1 for scores in per_class.values())
    entities = entity_scores(*tags_of(pairs), lengths) if is_tagged else None
    if entities is not None:
        scores["entity_f1"] = entities.f1
    return Scores(
        n_rows=len(pairs.true),
        n_without_vector=int(counts[:, -1].sum()),
        scores=scores,
        per_part=per_class,
        notes=[f"labels that training has not seen, counted as errors: {shown}"] if unseen else [],
        confusion=Confusion(tuple(labels), counts[:, :-1], counts[:, -1]),
        entities=entities,
        unseen_labels=unseen,
    )


def primary_metric(labels: Iterable[object]) -> str:
    """Return the score that compares probes on such labels: entity_f1 for tags, else accuracy."""
    return "entity_f1" if is_tag_scheme(labels) else "accuracy"


def score_by(
    metric: str, truth: Labels, predicted: Labels, lengths: IntArray | None = None, classes: Labels | None = None
) -> float:
    """Return one of `DEV_METRICS`: of labels (n_rows,), those of sequences of these lengths for entity_f1.

    Numbers are (n_rows,) or (n_rows, n_targets); a correlation that is undefined is 0. Sets of labels are tuples
    (n_rows,), with predictions bool (n_rows, n_classes) of sorted `classes`.
    """
    if metric in metrics.NUMBER_METRICS:
        return metrics.number_score(metric, truth, predicted)
    if classes is not None:
        return metrics.set_score(metric, metrics.pair_label_sets(truth, predicted, classes))
    if metric == "entity_f1":
        return entity_scores(truth, predicted, lengths).f1
    if metric == "macro_f1":
        n_right, n_true, n_predicted = _totals(_counts(pair_labels(truth, predicted)))
        return float((2 * n_right / (n_true + n_predicted)).mean())
    return float(np.mean(truth == predicted))


def pair_labels(
    y_true: npt.ArrayLike,
    y_pred: npt.ArrayLike,
    lengths: npt.ArrayLike | None = None,
    predicted: BoolArray | None = None,
) -> Pairs:
    """Return labels (n_rows,), or lists per sequence, as numbers; a row that is not `predicted` is O for entities."""
    if lengths is not None:
        n_rows = np.asarray(lengths, dtype=np.int64)
        y_true, y_pred = flatten_labels(y_true, n_rows), flatten_labels(y_pred, n_rows)
    truth, guesses = check_labels(y_true, what="y_true"), np.asarray(y_pred)
    if not len(truth):
        raise UserError("there are no rows to score")
    has_guess = np.ones(len(truth), np.bool_) if predicted is None else predicted
    given = check_labels(guesses[has_guess], what="y_pred")
    if len(given):
        require_same_kind(truth, "y_true", given, "y_pred")
    labels = np.unique(np.concatenate([truth, given]))
    codes = np.full(len(truth), len(labels), dtype=np.int64)
    codes[has_guess] = codes_of(given, labels)
    return Pairs(labels, codes_of(truth, labels), codes)


def tags_of(pairs: Pairs) -> tuple[Labels, Labels]:
    """Return true and predicted tags, (n_rows,) each, O where there is no prediction."""
    tags = np.append(pairs.labels, OUTSIDE)
    return tags[pairs.true], tags[pairs.predicted]


def _counts(pairs: Pairs) -> IntArray:
    """Return how often each label (rows) has each prediction (columns, the last for rows without one)."""
    n_labels = len(pairs.labels)
    flat = np.bincount(pairs.true * (n_labels + 1) + pairs.predicted, minlength=n_labels * (n_labels + 1))
    return flat.reshape(n_labels, n_labels + 1).astype(np.int64)


def _totals(counts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return how often each label is right, true and predicted, (n_labels,) each."""
    return counts.diagonal(), counts.sum(axis=1), counts[:, :-1].sum(axis=0)


def label_statistic(metric: str, pairs: Pairs, lengths: npt.ArrayLike | None = None) -> Statistic:
    """Return a score of labels for a bootstrap over sequences with any rows, or over rows if `lengths` is None."""
    n_words = np.ones(len(pairs.true), np.int64) if lengths is None else np.asarray(lengths, dtype=np.int64)
    n_words = n_words[n_words > 0]
    if metric != "entity_f1":
        true, guessed = (metrics.one_hot(codes, len(pairs.labels)) for codes in (pairs.true, pairs.predicted))
        return set_statistic(metric, true, guessed, n_words)
    found = entity_sets(*tags_of(pairs), n_words)
    table = [[2 * len(both), len(one) + len(other)] for both, one, other in found]
    return mean_of_fractions(sparse.csr_matrix(np.array(table, np.float64)))


def agreement(one: Labels, other: Labels) -> tuple[float, float | None]:
    """Return the share of rows whose two labels are equal, and Cohen's kappa, None where all labels are one."""
    kappa = float(cohen_kappa_score(one, other)) if len(np.unique([one, other])) > 1 else None
    return float(np.mean(one == other)), kappa


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of scores over seeds, and their sample deviation (n - 1), None for one score."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
