"""Confidence of scores: percentile intervals of the bootstrap, and mean and deviation over seeds.

Rows of one sequence are not independent observations, so whole sequences are drawn if there are any. The score of a
resample follows from counts, which are sums over the drawn rows or sequences.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bertfeat.errors import UserError
from bertfeat.heads.entities import entity_sets
from bertfeat.heads.scores import METRICS, Pairs, pair_labels, tags_of
from bertfeat.records import BoolArray, Float64Array, IntArray

# Values of the resamples of one step: 32 MB of float64.
_STEP_VALUES = 4 << 20


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a score, with confidence `level`, from draws of `n_units` sequences or rows."""

    low: float
    high: float
    level: float
    n_resamples: int
    n_units: int


# The score of each resample, (n_resamples,), from its sums of counts, (n_resamples, n_counts).
_Score = Callable[[Float64Array], Float64Array]


def bootstrap_interval(
    metric: str,
    y_true: npt.ArrayLike,
    y_pred: npt.ArrayLike,
    *,
    lengths: npt.ArrayLike | None = None,
    predicted: BoolArray | None = None,
    level: float = 0.95,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return the percentile bootstrap interval of accuracy, macro_f1 or entity_f1 (Efron and Tibshirani 1993, 13.3).

    `score_labels` describes the labels. With `lengths`, sequences are drawn, without the empty ones.
    """
    if metric == "entity_f1" and lengths is None:
        raise UserError("entity_f1 needs sequences; pass the lengths of them")
    pairs = pair_labels(y_true, y_pred, lengths, predicted)
    n_words = np.ones(len(pairs.true), np.int64) if lengths is None else np.asarray(lengths, dtype=np.int64)
    n_words = n_words[n_words > 0]
    table, score = _counts(metric, pairs, n_words)
    scores = [score(weights @ table) for weights in _draws(table.shape, n_resamples, seed)]
    low, high = np.quantile(np.concatenate(scores), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level, n_resamples, len(n_words))


def resamples(n_units: int, n_resamples: int, seed: int) -> Iterator[IntArray]:
    """Yield the units of each resample: int64 (n_units,), drawn with replacement."""
    random = np.random.default_rng(seed)
    for _ in range(n_resamples):
        yield random.integers(n_units, size=n_units)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of scores over seeds, and their sample deviation (n - 1), None for one score."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def _draws(shape: tuple[int, int], n_resamples: int, seed: int) -> Iterator[Float64Array]:
    """Yield how often each unit was drawn, (n_drawn, n_units), a few resamples at a time."""
    n_units, n_counts = shape
    step = max(1, _STEP_VALUES // max(n_units, n_counts))
    drawn = resamples(n_units, n_resamples, seed)
    while weights := [np.bincount(units, minlength=n_units) for units in islice(drawn, step)]:
        yield np.array(weights, dtype=np.float64)


def _counts(metric: str, pairs: Pairs, lengths: IntArray) -> tuple[sparse.csr_matrix, _Score]:
    """Return sparse counts (n_units, n_counts), and the function that makes scores of their sums."""
    if metric == "entity_f1":
        found = entity_sets(*tags_of(pairs), lengths)
        table = np.array([[len(right), len(predicted) + len(true)] for right, predicted, true in found], np.float64)
        return sparse.csr_matrix(table), _f1
    unit_of = np.repeat(np.arange(len(lengths)), lengths)
    is_right = pairs.predicted == pairs.true
    if metric == "accuracy":
        table = np.stack([np.bincount(unit_of, weights=is_right), lengths], axis=1)
        return sparse.csr_matrix(table), _ratio
    if metric == "macro_f1":
        return _class_counts(pairs, unit_of, is_right, len(lengths)), _macro_f1
    raise UserError(f"no metric {metric!r}; choose {', '.join(METRICS)}")


def _class_counts(pairs: Pairs, unit_of: IntArray, is_right: BoolArray, n_units: int) -> sparse.csr_matrix:
    """Return (n_units, 2 * n_labels): right rows of each label, then true and predicted rows of each together."""
    n_labels, has_guess = len(pairs.labels), pairs.predicted >= 0
    units = np.concatenate([unit_of[is_right], unit_of, unit_of[has_guess]])
    columns = np.concatenate([pairs.true[is_right], n_labels + pairs.true, n_labels + pairs.predicted[has_guess]])
    # Entries at the same place are added up.
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
