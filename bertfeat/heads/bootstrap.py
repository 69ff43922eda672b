"""Bootstrap intervals of scores, and the sums by which each score of a resample is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bertfeat.errors import UserError
from bertfeat.ragged import begins_run, run_of, starts_of
from bertfeat.records import BoolArray, Float64Array, IntArray

# Values of the resamples of one step, 32 MB of float64; the confidence of intervals.
_STEP_VALUES = 4 << 20
_LEVEL = 0.95
# Values that all resamples may read before fewer are drawn, and the fewest that are drawn then.
_MOST_READ = 2_000_000_000
_FEWEST = 100
# Share of a sum of squares below which a variance is rounding.
_ROUNDING = 1e-12

#: Values of the rows of two sides, (n_rows,) each: true and predicted numbers; membership of a class and its score.
Pair: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a score, with confidence `level`, from draws of `n_units` sequences or rows.

    `n_resamples` counts the draws for which the score is defined.
    """

    low: float
    high: float
    level: float
    n_resamples: int
    n_units: int


@dataclass(frozen=True, slots=True, eq=False)
class Statistic:
    """A score as a function of how often each unit is drawn.

    `scores` takes counts, float64 (n_resamples, n_units), and returns scores (n_resamples,), NaN where undefined.
    """

    n_units: int
    n_values: int  # held at once for a resample
    scores: Callable[[Float64Array], Float64Array]
    n_read: int = 1  # values that a resample reads; above 2 million, fewer than 1,000 resamples are drawn

    @property
    def of_all(self) -> float:
        """The score where each unit is drawn once."""
        return float(self.scores(np.ones((1, self.n_units)))[0])


def bootstrap(statistic: Statistic, n_resamples: int = 1000) -> Interval:
    """Return the percentile bootstrap interval of a score (Efron and Tibshirani 1993, 13.3); always the same one."""
    return interval_of(resampled_scores(statistic, n_resamples), statistic.n_units)


def resampled_scores(statistic: Statistic, n_resamples: int = 1000) -> Float64Array:
    """Return the score of each resample, (n_resamples,); of a score that is expensive fewer, at least 100.

    The draws depend on the number of units alone: different predictions for the same rows have the same resamples.
    """
    n_drawn = min(n_resamples, max(_FEWEST, _MOST_READ // statistic.n_read))
    n_units, step = statistic.n_units, max(1, _STEP_VALUES // statistic.n_values)
    drawn, scores = resamples(n_units, n_drawn, seed=0), []
    while weights := [np.bincount(units, minlength=n_units) for units in islice(drawn, step)]:
        scores.append(statistic.scores(np.array(weights, dtype=np.float64)))
    return np.concatenate(scores)


def interval_of(values: Float64Array, n_units: int) -> Interval:
    """Return the percentile interval of the scores of resamples, without those that are NaN."""
    defined = values[np.isfinite(values)]
    if not len(defined):
        raise UserError("the score is undefined for all resamples and has no interval; score rows that differ")
    low, high = np.quantile(defined, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(low), float(high), _LEVEL, len(defined), n_units)


def resamples(n_units: int, n_resamples: int, seed: int) -> Iterator[IntArray]:
    """Yield the units of each resample: int64 (n_units,), drawn with replacement."""
    random = np.random.default_rng(seed)
    for _ in range(n_resamples):
        yield random.integers(n_units, size=n_units)


def mean_of_fractions(table: sparse.csr_matrix) -> Statistic:
    """Return the mean of n fractions from counts (n_units, 2 * n), first the upper parts, then the lower."""

    def scores(weights: Float64Array) -> Float64Array:
        above, below = np.split(weights @ table, 2, axis=1)
        # Labels that do not occur in a resample are left out of its mean.
        return np.asarray((above / np.maximum(below, 1)).sum(axis=1) / np.maximum((below > 0).sum(axis=1), 1))

    return Statistic(table.shape[0], max(table.shape), scores)


def set_statistic(metric: str, true: sparse.csr_matrix, predicted: sparse.csr_matrix, lengths: IntArray) -> Statistic:
    """Return a score of sets of labels, 0 or 1 (n_rows, n_labels), of units of `lengths` rows, (n_units,).

    It is accuracy (of whole sets), macro_f1 or micro_f1; a single label is a set of one.
    """
    n_rows = true.shape[0]
    units = sparse.csr_matrix((np.ones(n_rows), np.arange(n_rows), starts_of(lengths)), shape=(len(lengths), n_rows))
    if metric.endswith("accuracy"):
        is_right = np.asarray((true != predicted).sum(axis=1)).ravel() == 0
        return mean_of_fractions(sparse.csr_matrix(np.stack([units @ is_right, lengths], axis=1)))
    # The F1 of each label: twice its right rows, by its true and its predicted rows together.
    above, below = 2 * (units @ true.multiply(predicted)), units @ (true + predicted)
    if metric == "micro_f1":
        above, below = (sparse.csr_matrix(counts.sum(axis=1)) for counts in (above, below))
    return mean_of_fractions(sparse.hstack([above, below]).tocsr())


def number_statistic(metric: str, targets: Sequence[Pair], lengths: IntArray) -> Statistic:
    """Return the mean score of targets, true and predicted numbers, of units of `lengths` rows, none of them 0."""
    if metric == "spearman":
        return _rank_statistic(targets, lengths)
    true, guessed = (np.stack(side, axis=1) for side in zip(*targets, strict=True))
    # Sums of squares lose fewer digits about the means.
    x, y, error = true - true.mean(axis=0), guessed - guessed.mean(axis=0), guessed - true
    columns = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y, error * error, np.abs(error)])
    table = np.add.reduceat(columns, starts_of(lengths)[:-1], axis=1)

    def scores(weights: Float64Array) -> Float64Array:
        n, sum_x, sum_y, xx, yy, xy, squared, absolute = weights @ table
        if metric in ("rmse", "mae"):
            return _mean(absolute / n if metric == "mae" else np.sqrt(squared / n))
        spread_x, spread_y = xx - sum_x**2 / n, yy - sum_y**2 / n
        varies_x, varies_y = spread_x > _ROUNDING * xx, spread_y > _ROUNDING * yy
        if metric == "r2":
            # scikit-learn's values where all true numbers are equal: 1 if all predictions are right, else 0.
            return _mean(np.where(varies_x, 1 - squared / np.where(varies_x, spread_x, 1), squared == 0))
        return _mean((xy - sum_x * sum_y / n) / np.sqrt(np.where(varies_x & varies_y, spread_x * spread_y, np.nan)))

    return Statistic(len(lengths), max(len(lengths), columns.shape[0] * columns.shape[2]), scores)


def _rank_statistic(targets: Sequence[Pair], lengths: IntArray) -> Statistic:
    """Return Spearman's correlation: Pearson's of ranks, where equal numbers have the mean of their ranks."""
    units, n_units = run_of(lengths), len(lengths)
    codes = [[np.unique(side, return_inverse=True)[1] for side in target] for target in targets]
    counts = [[_rows_of_units(side, units, n_units) for side in target] for target in codes]

    def scores(weights: Float64Array) -> Float64Array:
        drawn = np.ascontiguousarray(weights.T)
        found = np.full((len(weights), len(targets)), np.nan)
        for number, target in enumerate(codes):
            of_rows, norm = [], np.ones(len(weights))
            for side, rows in zip(target, counts[number], strict=True):
                n_equal = rows @ drawn
                up_to = n_equal.cumsum(axis=0)
                # Ranks less their mean, which is half of the number of rows.
                ranks = up_to - (n_equal + up_to[-1]) / 2
                norm *= np.sqrt((n_equal * ranks**2).sum(axis=0))
                of_rows.append(ranks[side])
            product = np.einsum("ij,ij,ij->j", drawn[units], *of_rows)
            np.divide(product, norm, out=found[:, number], where=norm > 0)
        return _mean(found)

    return Statistic(n_units, 4 * len(units), scores, n_read=len(units) * len(targets))


def ranking_statistic(metric: str, classes: Sequence[Pair], lengths: IntArray) -> Statistic:
    """Return the mean AUROC or average precision of classes, of units of `lengths` rows.

    Each class has whether rows are of it, and their scores, the best highest.
    """
    n_units, units = len(lengths), run_of(lengths)
    steps = [_ranking_steps(*pair, units, n_units) for pair in classes]

    def scores(weights: Float64Array) -> Float64Array:
        drawn = np.ascontiguousarray(weights.T)
        found = np.full((len(weights), len(steps)), np.nan)
        for number, kinds in enumerate(steps):
            positive, negative = (rows @ drawn for rows in kinds)
            positives, negatives = positive.cumsum(axis=0), negative.cumsum(axis=0)
            n_positive, n_negative = positives[-1], negatives[-1]
            # Precision, or the share of the negatives that are ranked lower, and half of those with the same score.
            if metric == "average_precision":
                values = positives / np.maximum(positives + negatives, 1)
            else:
                values = 1 - (negatives - negative / 2) / np.maximum(n_negative, 1)
            has_both = (n_positive > 0) & (n_negative > 0)
            np.divide((positive * values).sum(axis=0), n_positive, out=found[:, number], where=has_both)
        return _mean(found)

    most = max([n_units, *(6 * positive.shape[0] for positive, _ in steps)])
    return Statistic(n_units, most, scores, n_read=max(1, len(units) * len(classes)))


def _ranking_steps(
    is_positive: BoolArray, scores: npt.NDArray[Any], units: IntArray, n_units: int
) -> list[sparse.csr_matrix]:
    """Return the positive and the negative rows in each step of a ranking, best first, (n_steps, n_units) each.

    A step is the rows with one score if any is positive; all rows between such steps are one step.
    """
    order = np.argsort(scores, kind="stable")[::-1]
    score_of = np.cumsum(begins_run(scores[order])) - 1
    has_positive = np.bincount(score_of, weights=is_positive[order]) > 0
    step_of = (np.cumsum(has_positive | np.append(True, has_positive[:-1])) - 1)[score_of]
    n_steps, kinds = int(step_of[-1]) + 1, (is_positive[order], ~is_positive[order])
    return [_rows_of_units(step_of[kind], units[order][kind], n_units, n_steps) for kind in kinds]


def _rows_of_units(codes: IntArray, units: IntArray, n_units: int, n_codes: int | None = None) -> sparse.csr_matrix:
    """Return how many rows of each unit have each code: (n_codes, n_units)."""
    shape = codes.max() + 1 if n_codes is None else n_codes, n_units
    # Entries at the same place are added up.
    return sparse.csr_matrix((np.ones(len(codes)), (codes, units)), shape=shape)


def _mean(values: Float64Array) -> Float64Array:
    """Return the mean of the columns of each row that are defined; NaN if none is."""
    return np.asarray(np.ma.masked_invalid(values).mean(axis=1).filled(np.nan))
