"""Scores of labels, numbers, sets of labels and rankings, as scikit-learn and scipy compute them.

Labels that training has not seen, and rows without a vector, are errors.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse, stats
from sklearn import metrics as sk

from bertfeat.choices import Task
from bertfeat.display import printable
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.heads.base import DEV_METRICS, Labels, check_labels, codes_of, require_same_kind
from bertfeat.heads.bootstrap import Pair, Statistic, mean_of_fractions, set_statistic
from bertfeat.heads.entities import OUTSIDE, EntityScores, LabelScores, entity_scores, entity_sets, is_tag_scheme
from bertfeat.heads.targets import indicators
from bertfeat.records import BoolArray, Float64Array, IntArray

#: Sorted labels, and which of them rows have and are predicted to have, 0 or 1, (n_rows, n_labels) each.
Sets: TypeAlias = tuple[Labels, sparse.csr_matrix, sparse.csr_matrix]

Label = str | int | bool

_Measures = Mapping[str, Callable[[npt.NDArray[Any], npt.NDArray[Any]], float]]
_NUMBERS: _Measures = {
    # Differences from the first value are exactly 0 where all values are equal.
    "r2": lambda true, guessed: sk.r2_score(true - true[0], guessed - true[0]),
    "pearson": lambda true, guessed: stats.pearsonr(true, guessed).statistic,
    "spearman": lambda true, guessed: stats.spearmanr(true, guessed).statistic,
    "rmse": sk.root_mean_squared_error,
    "mae": sk.mean_absolute_error,
}
_RANKINGS: _Measures = {"auroc": sk.roc_auc_score, "average_precision": sk.average_precision_score}
RANKING_METRICS = tuple(_RANKINGS)
SET_METRICS = DEV_METRICS[Task.MULTILABEL]
_TITLES = {"auroc": "AUROC", "r2": "R2", "pearson": "Pearson", "spearman": "Spearman", "rmse": "RMSE", "mae": "MAE"}


@dataclass(frozen=True, slots=True, eq=False)
class Confusion:
    """Counts of true labels (rows) predicted as each label (columns), and of rows without a prediction."""

    labels: tuple[Label, ...]
    matrix: IntArray  # (n_labels, n_labels)
    unpredicted: IntArray  # (n_labels,)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores by metric and of each class or target, None where undefined; each one is an attribute: `scores.accuracy`.

    One label per row also has a confusion, entities of tags, and the rows of each label that training has not seen.
    """

    n_rows: int
    n_without_vector: int
    scores: Mapping[str, float | None]
    part: str = "class"  # or target
    per_part: Mapping[Any, Any] = field(default_factory=dict)  # scores by name, or `LabelScores`
    notes: Sequence[str] = ()  # how rows and classes were counted
    confusion: Confusion | None = None
    entities: EntityScores | None = None
    unseen_labels: Mapping[Label, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        found = {**self.scores, f"per_{self.part}": self.per_part}
        if name not in found:
            raise AttributeError(f"no score {name!r}; there are {', '.join(found)}")
        return found[name]

    @property
    def metric(self) -> str:
        """The main score: entity F1 for tags, else the first one."""
        return next(iter(self.scores)) if self.entities is None else "entity_f1"

    @property
    def values(self) -> dict[str, float]:
        """The scores that are defined."""
        return {name: value for name, value in self.scores.items() if value is not None}

    def value(self, metric: str) -> float:
        """Return one of the scores that are defined."""
        if metric not in self.values:
            why = "; the labels are not tags of entities" if metric == "entity_f1" else ""
            raise UserError(f"no score {metric!r}{why}; choose {', '.join(self.values)}")
        return self.values[metric]

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON values; names of parts become text."""
        per_part = {str(name): _by_name(scores) for name, scores in self.per_part.items()}
        counts = {"n_rows": self.n_rows, "n_without_vector": self.n_without_vector, "notes": list(self.notes)}
        values = {**self.scores, f"per_{self.part}": per_part, **counts}
        if self.confusion is not None:
            values["entities"] = None if self.entities is None else self.entities.to_dict()
            values["confusion"] = to_values(self.confusion)
            values["unseen_labels"] = {str(label): count for label, count in self.unseen_labels.items()}
        return values

    def table(self) -> tuple[list[str], list[list[object]]]:
        """Return headers and a row for each type of entities, and for each target or class."""
        of_types = {} if self.entities is None else self.entities.per_type
        rows: list[list[object]] = [[f"entity {name}", *scores] for name, scores in of_types.items()]
        rows += [[name, *_by_name(scores).values()] for name, scores in self.per_part.items()]
        headers = [self.part, *map(title_of, _by_name(next(iter(self.per_part.values()), {})))]
        return headers if self.confusion is None else ["label", *headers[1:-1], "rows"], rows

    def lines(self) -> list[str]:
        """Return the counts of entities and the notes as lines to read."""
        if (found := self.entities) is None:
            return [*self.notes]
        counts = f"{found.n_correct} right of {found.n_predicted} predicted and {found.n_true} true"
        return [f"entities: precision {found.precision:.4f}, recall {found.recall:.4f}; {counts}", *self.notes]


def _by_name(scores: Any) -> dict[str, float | None]:
    return dict(scores._asdict() if isinstance(scores, LabelScores) else scores)


def title_of(metric: str) -> str:
    """Return the name of a metric to read."""
    return _TITLES.get(metric, metric.replace("_", " ").replace("f1", "F1"))


def pair_numbers(y_true: Float64Array, y_pred: Float64Array) -> list[Pair]:
    """Return true and predicted numbers of each target from arrays (n_rows,) or (n_rows, n_targets)."""
    if len(y_true) < 2:
        raise UserError(f"there are {len(y_true)} rows to score; scores of numbers need two or more")
    if not np.isfinite(y_pred).all():
        raise UserError("a prediction is NaN or infinite; fit with a lower lr or a stronger penalty")
    return list(zip(*(np.reshape(side, (len(y_true), -1)).T for side in (y_true, y_pred)), strict=True))


def score_numbers(targets: Sequence[Pair], n_without_vector: int) -> Scores:
    """Score numbers: means of the targets; rows without a vector cannot be scored and are left out.

    A correlation is undefined where all numbers are equal; means leave it out.
    """
    note = f"rows without a vector, which cannot be scored and are left out: {n_without_vector}"
    notes = [note] if n_without_vector else []
    return _of_parts(_NUMBERS, "target", dict(enumerate(targets)), n_without_vector, notes)


def score_rankings(classes: Mapping[Any, Pair], n_without_vector: int) -> Scores:
    """Score rankings of rows by the scores of each class: means of the classes; rows without a vector are left out."""
    names = [printable(str(name)) for name in classes]
    which = f"mean of {len(names)} classes, each" if len(names) > 1 else f"class {names[0]}" if names else "no class"
    left_out = f"; rows without a vector, left out: {n_without_vector}" if n_without_vector else ""
    note = f"AUROC and average precision: {which} against the rest{left_out}"
    return _of_parts(_RANKINGS, "class", classes, n_without_vector, [note])


def _of_parts(
    measures: _Measures, part: str, pairs: Mapping[Any, Pair], n_without_vector: int, notes: Sequence[str]
) -> Scores:
    per_part = {name: {metric: _value(measures, metric, pair) for metric in measures} for name, pair in pairs.items()}
    means = {metric: _mean([scores[metric] for scores in per_part.values()]) for metric in measures}
    n_rows = len(next(iter(pairs.values()))[0]) if pairs else 0
    return Scores(n_rows, n_without_vector, means, part, per_part, notes)


def _value(measures: _Measures, metric: str, pair: Pair) -> float | None:
    if metric in ("pearson", "spearman") and min(map(np.ptp, pair)) == 0:
        return None
    value = float(measures[metric](*pair))
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return math.fsum(defined) / len(defined) if defined else None


def pair_rankings(
    y_true: npt.NDArray[Any], scores: npt.NDArray[Any], classes: Labels, *, are_sets: bool
) -> dict[Any, Pair]:
    """Return whether rows are of each class, and their scores, for the classes with rows of both kinds.

    `y_true` is labels, or tuples of labels, (n_rows,), and `scores` those of sorted classes, (n_rows, n_classes), or
    (n_rows,) of the second of two. Of two classes only the second is ranked, as scikit-learn does.
    """
    if are_sets:
        is_true = indicators(y_true, classes).T
    else:
        is_true = codes_of(y_true, classes) == np.arange(len(classes))[:, None]
        if len(classes) == 2:
            classes, is_true, scores = classes[1:], is_true[1:], scores.reshape(len(y_true), -1)[:, -1:]
    columns = zip(classes.tolist(), is_true, scores.T, strict=True)
    return {name: (found, ranked) for name, found, ranked in columns if found.any() and not found.all()}


def pair_label_sets(y_true: npt.NDArray[Any], y_pred: BoolArray, classes: Labels) -> Sets:
    """Return true sets of labels, tuples (n_rows,), and predicted sets of sorted classes, bool (n_rows, n_classes)."""
    if not len(y_true):
        raise UserError("there are no rows to score")
    seen = check_labels(list(chain.from_iterable(y_true)), what="y_true")
    if len(seen):
        require_same_kind(seen, "y_true", classes, "the probe")
    labels = np.union1d(classes, seen) if len(seen) else classes
    # Counts, so that sums of two are 2.
    true, predicted = (sparse.csr_matrix(sets, dtype=np.int64) for sets in (indicators(y_true, labels), y_pred))
    return labels, true, predicted @ one_hot(codes_of(classes, labels), len(labels))


def one_hot(codes: IntArray, n_labels: int) -> sparse.csr_matrix:
    """Return labels as sets of one, (n_rows, n_labels), empty for codes that are none of them."""
    return sparse.eye(n_labels + 1, n_labels, dtype=np.int64, format="csr")[codes]


def score_label_sets(sets: Sets, classes: Labels, n_without_vector: int) -> Scores:
    """Score sets of labels; macro F1 is the mean over the labels that occur in truth or prediction.

    Labels that are not among `classes`, which training has seen, count as missed.
    """
    labels, true, predicted = sets
    kinds = (true.multiply(predicted), true, predicted)
    totals = zip(*(kind.sum(axis=0).tolist()[0] for kind in kinds), strict=True)
    rows = zip(labels.tolist(), totals, strict=True)
    per_class = {name: LabelScores.of(*of_label)._asdict() for name, of_label in rows if any(of_label)}
    notes = []
    if n_without_vector:
        notes.append(f"rows without a vector, counted as predicted without labels: {n_without_vector}")
    if unseen := sorted(per_class.keys() - set(classes.tolist())):
        counts = ", ".join(f"{printable(str(label))} ({per_class[label]['support']} rows)" for label in unseen)
        notes.append(f"labels that training has not seen, counted as missed: {counts}")
    all_rows = np.array([true.shape[0]])
    scores = {metric: set_statistic(metric, true, predicted, all_rows).of_all for metric in SET_METRICS}
    return Scores(true.shape[0], n_without_vector, scores, "class", per_class, notes)


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
    labels = pairs.labels.tolist()
    # The last column is for rows without a prediction.
    counts = (one_hot(pairs.true, len(labels)).T @ one_hot(pairs.predicted, len(labels) + 1)).toarray()
    totals = np.stack([counts.diagonal(), counts.sum(axis=1), counts[:, :-1].sum(axis=0)], axis=1).tolist()
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
    if metric in _NUMBERS:
        return _mean([_value(_NUMBERS, metric, pair) for pair in pair_numbers(truth, predicted)]) or 0.0
    if classes is not None and predicted.ndim == 2:
        _, true, guessed = pair_label_sets(truth, predicted, classes)
        return set_statistic(metric, true, guessed, np.array([len(truth)])).of_all
    return label_statistic(metric, pair_labels(truth, predicted), lengths).of_all


def pair_labels(y_true: npt.ArrayLike, y_pred: npt.ArrayLike, predicted: BoolArray | None = None) -> Pairs:
    """Return labels (n_rows,) as numbers; a row that is not `predicted` is O for entities."""
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


def label_statistic(metric: str, pairs: Pairs, lengths: npt.ArrayLike | None = None) -> Statistic:
    """Return a score of labels for a bootstrap over sequences with any rows, or over rows if `lengths` is None."""
    n_words = np.ones(len(pairs.true), np.int64) if lengths is None else np.asarray(lengths, dtype=np.int64)
    n_words = n_words[n_words > 0]
    if metric != "entity_f1":
        true, guessed = (one_hot(codes, len(pairs.labels)) for codes in (pairs.true, pairs.predicted))
        return set_statistic(metric, true, guessed, n_words)
    found = entity_sets(*tags_of(pairs), n_words)
    table = [[2 * len(both), len(one) + len(other)] for both, one, other in found]
    return mean_of_fractions(sparse.csr_matrix(np.array(table, np.float64)))


def agreement(one: Labels, other: Labels) -> tuple[float, float | None]:
    """Return the share of rows whose two labels are equal, and Cohen's kappa, None where all labels are one."""
    kappa = float(sk.cohen_kappa_score(one, other)) if len(np.unique([one, other])) > 1 else None
    return float(np.mean(one == other)), kappa


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of scores over seeds, and their sample deviation (n - 1), None for one score."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
