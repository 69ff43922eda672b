"""How far scores may be trusted: percentile intervals of the bootstrap, and mean and deviation over seeds.

Rows of one sequence are no independent observations, so that whole sequences are drawn where there are any. A score of
a resample follows from counts that add up over what was drawn; nothing is predicted or compared again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bertfeat.errors import UserError
from bertfeat.heads.entities import entity_counts
from bertfeat.heads.matrices import flatten_labels
from bertfeat.heads.scores import METRICS, Pairs, pair_labels, tags_of
from bertfeat.records import BoolArray, Float64Array, IntArray

# Values that the resamples of one step may hold: 32 MB of float64.
_STEP_VALUES = 4 << 20


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a score, from `low` to `high`, that holds with probability `level`.

    It is made of `n_resamples` draws of `n_units` units: sequences where there are any, else rows.
    """

    low: float
    high: float
    level: float
    n_resamples: int
    n_units: int

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """Counts (n_units, n_counts), sparse, and the score that follows from sums of them, (n_resamples, n_counts)."""

    table: sparse.csr_matrix
    score: Callable[[Float64Array], Float64Array]


def bootstrap_interval(
    metric: str,
    y_true: object,
    y_pred: object,
    *,
    lengths: npt.ArrayLike | None = None,
    predicted: BoolArray | None = None,
    level: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return the percentile bootstrap interval of a score (Efron and Tibshirani 1993, section 13.3).

    Args:
        metric: accuracy, macro_f1, micro_f1 or entity_f1, with the meaning that `Scores` gives them.
        y_true: Labels (n_rows,), or one list a sequence where `lengths` are given.
        y_pred: Predictions, likewise.
        lengths: int (n_sequences,): the rows of each sequence; sequences are then drawn, those of no rows left out.
        predicted: bool (n_rows,): which rows have a prediction; by default those whose prediction is not None.
        level: The probability with which the interval is to hold the score.
        n_resamples: How often is drawn.
        seed: The seed of the draws.

    Raises:
        UserError: There is no such metric, entity_f1 has no sequences, a setting is out of its range, or labels do not
            go together (see `score_rows`).
    """
    if not 0 < level < 1:
        raise UserError(f"level {level!r} is not between 0 and 1")
    if n_resamples < 1:
        raise UserError(f"n_resamples {n_resamples} is below 1")
    if lengths is None:
        truth, guesses = np.asarray(y_true), np.asarray(y_pred)
        n_words = np.ones(len(truth), dtype=np.int64)
    else:
        n_words = np.asarray(lengths, dtype=np.int64)
        truth, guesses = flatten_labels(y_true, n_words), flatten_labels(y_pred, n_words)
        n_words = n_words[n_words > 0]
    if metric == "entity_f1" and lengths is None:
        raise UserError("entity_f1 needs sequences; pass the lengths of them")
    counts = _counts(metric, pair_labels(truth, guesses, predicted), n_words)
    scores = [counts.score(weights @ counts.table) for weights in _draws(counts.table.shape, n_resamples, seed)]
    low, high = np.quantile(np.concatenate(scores), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level, n_resamples, len(n_words))


def resamples(n_units: int, n_resamples: int, seed: int) -> Iterator[IntArray]:
    """Yield the units of each resample: int64 (n_units,), drawn with replacement."""
    random = np.random.default_rng(seed)
    for _ in range(n_resamples):
        yield random.integers(n_units, size=n_units)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of scores over seeds, and their sample deviation (n - 1), None for one alone.

    Raises:
        UserError: There are no values.
    """
    if not len(values):
        raise UserError("there are no values to take the mean of")
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _draws(shape: tuple[int, int], n_resamples: int, seed: int) -> Iterator[Float64Array]:
    """Yield how often each unit was drawn, (n_drawn, n_units), a few resamples at a time."""
    n_units, n_counts = shape
    step = max(1, _STEP_VALUES // max(n_units, n_counts))
    drawn = resamples(n_units, n_resamples, seed)
    while weights := [np.bincount(units, minlength=n_units) for units in islice(drawn, step)]:
        yield np.array(weights, dtype=np.float64)


def _counts(metric: str, pairs: Pairs, lengths: IntArray) -> _Counts:
    if metric == "entity_f1":
        found = entity_counts(*tags_of(pairs), lengths).by_sequence
        table = np.stack([found.tp, found.n_pred + found.n_true], axis=1).astype(np.float64)
        return _Counts(sparse.csr_matrix(table), _f1)
    unit_of = np.repeat(np.arange(len(lengths)), lengths)
    is_right = pairs.predicted == pairs.true
    # Micro F1 over all labels is the accuracy: every wrong prediction is one false positive and one false negative.
    if metric in ("accuracy", "micro_f1"):
        table = np.stack([np.bincount(unit_of, weights=is_right), lengths], axis=1)
        return _Counts(sparse.csr_matrix(table), _ratio)
    if metric == "macro_f1":
        return _Counts(_class_counts(pairs, unit_of, is_right, len(lengths)), _macro_f1)
    raise UserError(f"no metric {metric!r}; choose {', '.join(METRICS)}")


def _class_counts(pairs: Pairs, unit_of: IntArray, is_right: BoolArray, n_units: int) -> sparse.csr_matrix:
    """Return (n_units, 2 * n_labels): right rows of each label, then true and predicted rows of each together."""
    n_labels, has_guess = len(pairs.labels), pairs.predicted >= 0
    units = np.concatenate([unit_of[is_right], unit_of, unit_of[has_guess]])
    columns = np.concatenate([pairs.true[is_right], n_labels + pairs.true, n_labels + pairs.predicted[has_guess]])
    # Entries of one place are added up.
    return sparse.coo_matrix((np.ones(len(units)), (units, columns)), shape=(n_units, 2 * n_labels)).tocsr()


def _ratio(sums: Float64Array) -> Float64Array:
    return np.asarray(sums[:, 0] / sums[:, 1])


def _f1(sums: Float64Array) -> Float64Array:
    return np.asarray(2 * sums[:, 0] / np.maximum(sums[:, 1], 1))


def _macro_f1(sums: Float64Array) -> Float64Array:
    """Return the mean F1 of the labels that occur in a resample."""
    n_labels = sums.shape[1] // 2
    tp, n_rows = sums[:, :n_labels], sums[:, n_labels:]
    return np.asarray((2 * tp / np.maximum(n_rows, 1)).sum(axis=1) / (n_rows > 0).sum(axis=1))
