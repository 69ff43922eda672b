"""Measures of a sample of rows: intrinsic dimension, common neighbours, similarity of similarities."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.records import Float32Array, Float64Array, IntArray
from bertfeat.vectors.nearest import Metric, lengths_of, nearest

N_NEIGHBOURS = 10
# Rows whose pairs RSA compares.
N_RSA_ROWS = 1000
_LEAST_POINTS = 10
# The part of the largest ratios that Facco et al. leave out of the fit.
_LEFT_OUT = 0.1
_MAX_BYTES = 64_000_000


def neighbours(rows: Float32Array, k: int, metric: Metric) -> tuple[npt.NDArray[Any], IntArray]:
    """Return the scores and the numbers (n, k) of the k nearest other rows of each row (n, dim)."""
    places = np.arange(len(rows), dtype=np.int64)
    settings: Any = {"prepare": lambda batch: batch, "exclude": places, "max_bytes": _MAX_BYTES, "dtype": np.float64}
    return nearest([(rows, places)], rows, k, metric, **settings)


def intrinsic_dimension(rows: Float32Array) -> float:
    """Return the two-nearest-neighbour intrinsic dimension (Facco et al. 2017); NaN for fewer than 10 different rows.

    The ratio of the distances to the second and to the first neighbour has the distribution ``1 - ratio**-dimension``.
    The line through the origin is fitted without the largest tenth of the ratios, as in the paper; of equal rows one
    counts.

    Args:
        rows: float32 (n, dim).
    """
    # As bytes, rows are sorted much faster than as numbers; -0 becomes 0.
    whole = np.ascontiguousarray(rows + np.float32(0)).view(f"V{rows.itemsize * rows.shape[1]}").ravel()
    once = rows[np.unique(whole, return_index=True)[1]]
    if len(once) < _LEAST_POINTS:
        return np.nan
    distances = neighbours(once, 2, Metric.L2)[0]
    ratios = np.sort(np.log(distances[:, 1] / distances[:, 0]))
    kept = int(len(ratios) * (1 - _LEFT_OUT))
    expected = -np.log1p(-np.arange(1, kept + 1) / len(ratios))
    below = float(ratios[:kept] @ ratios[:kept])
    return float(expected @ ratios[:kept]) / below if below else np.nan


def overlap(one: IntArray, two: IntArray) -> float:
    """Return the mean share of common neighbours of two lists of neighbours (n, k) of the same rows.

    Examples:
        >>> overlap(np.array([[1, 2], [0, 2]]), np.array([[2, 3], [0, 2]]))
        0.75
    """
    return float((one[:, :, None] == two[:, None, :]).any(axis=2).mean())


def centred_cosine(rows: Float32Array, mean: Float64Array) -> float:
    """Return the mean cosine of all pairs of rows (n, dim) after a mean (dim,) is subtracted."""
    units = _units(rows - mean)
    n_pairs = len(rows) * (len(rows) - 1)
    return float((np.square(units.sum(axis=0)).sum() - np.square(units).sum()) / n_pairs)


def rsa(one: Float32Array, two: Float32Array) -> float:
    """Return the Spearman correlation of the cosines of all pairs of rows in two spaces (Kriegeskorte et al. 2008).

    Of each sample, (n, dim) with its own dim, 1,000 rows at equal steps count. NaN where all pairs of one are alike.
    """
    chosen = np.linspace(0, len(one) - 1, min(len(one), N_RSA_ROWS)).astype(np.int64)
    ranks = []
    for rows in (one[chosen], two[chosen]):
        cosines = _cosines(rows)[np.triu_indices(len(rows), 1)]
        _, place, counts = np.unique(cosines, return_inverse=True, return_counts=True)
        # Equal values share the mean of their ranks.
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[place])
    return _correlation(ranks[0], ranks[1])


def _units(vectors: Float32Array | Float64Array) -> Float64Array:
    """Return vectors (n, dim) divided by their lengths; zero vectors stay zero."""
    lengths = lengths_of(vectors)
    units: Float64Array = vectors / np.where(lengths > 0, lengths, 1)[:, None]
    return units


def _cosines(vectors: Float32Array | Float64Array) -> Float64Array:
    """Return the cosines of all pairs of vectors (n, dim), (n, n), without the last digits, which are rounding error.

    Float32 would not do: with a large common mean, cosines differ only in the seventh digit.
    """
    units = _units(vectors)
    return np.round(units @ units.T, 12)


def _correlation(one: Float64Array, two: Float64Array) -> float:
    """Return the Pearson correlation of two lists of numbers (n,); NaN where one is constant."""
    if not (len(one) and np.ptp(one) and np.ptp(two)):
        return np.nan
    first, second = one - one.mean(), two - two.mean()
    return float(first @ second / np.sqrt((first @ first) * (second @ second)))


def shifts(one: Float64Array, two: Float64Array) -> Float64Array:
    """Return how far words moved between two spaces, (n,): 0 for not at all, about 1 for no relation left, or NaN.

    One less the correlation of the word's cosines with all other words, there and here (the local measure of Hamilton
    et al. 2016, with all words for neighbours): a rotation of a space changes nothing, and the spaces may differ in
    width. NaN where a word has the same cosine with all others.

    Args:
        one: float64 (n, dim), a vector for each word.
        two: float64 (n, other dim), the same words.
    """
    sides = [_cosines(vectors) for vectors in (one, two)]
    places = range(len(one))
    return np.array([1 - _correlation(*(np.delete(cosines[place], place) for cosines in sides)) for place in places])
