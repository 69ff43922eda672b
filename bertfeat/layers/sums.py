"""Sums over the rows of layers, in memory that does not grow with the rows, and measures of a sample of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.records import Float32Array, Float64Array, Int32Array, IntArray
from bertfeat.vectors.nearest import Metric, nearest, norms_of
from bertfeat.vectors.standardized import Moments

N_NEIGHBORS = 10
# Rows whose pairs RSA compares.
_N_RSA_ROWS = 1000
_LEAST_POINTS = 10
# The part of the largest ratios that Facco et al. leave out of the fit.
_LEFT_OUT = 0.1
_MAX_BYTES = 64_000_000
# Rows whose variance is a smaller part of their squares are equal: the rest is rounding.
_LEAST_VARIANCE = 1e-12


class _Documents:
    """The mean over documents of more than one row of the mean cosine of rows with their mean (Ethayarajh 2019)."""

    def __init__(self, dim: int) -> None:
        # Of the last document, which may continue in the next block: sums of vectors and of unit vectors, and rows.
        self._number, self._sums, self._n_rows = -1, np.zeros((2, 1, dim)), np.zeros(1, np.int64)
        self._total, self._n = 0.0, 0

    def add(self, vectors: Float32Array, units: Float64Array, documents: Int32Array) -> None:
        """Add the next rows (n, dim) with the ascending numbers of their documents (n,)."""
        numbers, first, counts = np.unique(documents, return_index=True, return_counts=True)
        sums = np.stack([np.add.reduceat(one, first, axis=0, dtype=np.float64) for one in (vectors, units)])
        if numbers[0] == self._number:
            sums[:, :1] += self._sums
            counts[:1] += self._n_rows
        else:
            self._count(self._sums, self._n_rows)
        self._count(sums[:, :-1], counts[:-1])
        self._number, self._sums, self._n_rows = int(numbers[-1]), sums[:, -1:], counts[-1:]

    def mean(self) -> float:
        """Return the mean; NaN if no document has two rows. No rows may be added after it."""
        self._count(self._sums, self._n_rows)
        return self._total / self._n if self._n else np.nan

    def _count(self, sums: Float64Array, n_rows: IntArray) -> None:
        lengths = np.linalg.norm(sums[0], axis=1)
        kept = (n_rows > 1) & (lengths > 0)
        self._total += float(((sums[0] * sums[1]).sum(axis=1)[kept] / (lengths * n_rows)[kept]).sum())
        self._n += int(kept.sum())


class LayerSums:
    """The sums of one layer, from which mean cosines follow; a zero vector has cosine 0 with every vector."""

    # The squared length of a sum of unit vectors is the sum of the cosines of all pairs, in both orders and of itself.

    def __init__(self, dim: int, n_types: int) -> None:
        self.types: Float64Array = np.zeros((n_types, dim))
        self.type_counts: IntArray = np.zeros(n_types, np.int64)
        self.squares: Float64Array = np.zeros(dim)
        self._type_squares: Float64Array = np.zeros(n_types)
        self._units, self._unit_squares = np.zeros(dim), np.zeros(dim)
        self._documents = _Documents(dim)
        self._lengths, self._mean = Moments(1, "squares"), Moments(dim, "mean")

    def add(self, vectors: Float32Array, documents: Int32Array, types: Int32Array) -> None:
        """Add the next rows (n, dim), with their documents and their word types (n,); -1 is a type that is left out."""
        lengths = norms_of(vectors)
        units = vectors / np.where(lengths > 0, lengths, 1)[:, None]
        order = np.argsort(types, kind="stable")[np.count_nonzero(types < 0) :]
        numbers, first, counts = np.unique(types[order], return_index=True, return_counts=True)
        if len(order):
            self.types[numbers] += np.add.reduceat(units[order], first, axis=0)
            self._type_squares[numbers] += np.add.reduceat(np.square(units[order]).sum(axis=1), first)
            self.type_counts[numbers] += counts
        self._documents.add(vectors, units, documents)
        self.squares += np.einsum("ij,ij->j", vectors, vectors, dtype=np.float64)
        self._units += units.sum(axis=0)
        self._unit_squares += np.einsum("ij,ij->j", units, units)
        self._lengths.add(lengths[:, None])
        self._mean.add(vectors)

    @property
    def mean(self) -> Float64Array:
        """The mean of the rows, float64 (dim,)."""
        return self._mean.mean

    def measures(self) -> dict[str, float]:
        """Return the measures that these sums give; NaN where one is not defined."""
        n_rows, total = self._lengths.n_rows, self.squares.sum()
        # What each dimension adds to the mean cosine of all pairs.
        parts = (np.square(self._units) - self._unit_squares) / (n_rows * (n_rows - 1))
        of_types = np.square(self.types).sum(axis=1) - self._type_squares
        n_pairs = self.type_counts * (self.type_counts - 1.0)
        return {
            "anisotropy": float(parts.sum()),
            "top3_anisotropy": float(np.sort(parts)[-3:].sum()),
            # The mean over types of the mean cosine of two rows of a type (Ethayarajh 2019).
            "self_similarity": float((of_types / n_pairs).mean()) if len(n_pairs) else np.nan,
            "within_sentence": self._documents.mean(),
            "norm_mean": float(self._lengths.mean[0]),
            "norm_sd": float(np.sqrt(self._lengths.squares[0] / n_rows)),
            "top3_share": float(np.sort(self.squares)[-3:].sum() / total) if total else np.nan,
        }


class PairSums:
    """Sums of the products of the values of pairs of layers: they give linear CKA without a matrix of rows by rows."""

    # Products are made in float32 after a shift by the mean of the first block and a scaling, and added up in float64.
    # The squared length of a row is one more value, which the unbiased estimate needs.

    def __init__(self, pairs: Sequence[tuple[int, int]], dims: Sequence[int]) -> None:
        self.layers = sorted({number for pair in pairs for number in pair})
        self._products = {(i, j): np.zeros((dims[i] + 1, dims[j] + 1)) for i, j in pairs}
        self._sums = {number: np.zeros(dims[number] + 1) for number in self.layers}
        self._frames: dict[int, tuple[float, Float32Array]] = {}
        self._n = 0

    def add(self, vectors: Mapping[int, Float32Array]) -> None:
        """Add the same rows of all layers, each (n, dim)."""
        values = {}
        for number, total in self._sums.items():
            if number not in self._frames:
                # A power of two: the division rounds nothing.
                scale = 2.0 ** (math.frexp(np.abs(vectors[number]).max())[1] - 1)
                self._frames[number] = scale, (vectors[number] / scale).mean(axis=0)
            scale, mean = self._frames[number]
            moved = vectors[number] / scale - mean
            values[number] = np.column_stack([moved, np.square(moved).sum(axis=1)])
            total += values[number].sum(axis=0, dtype=np.float64)
        for (i, j), product in self._products.items():
            product += values[i].T @ values[j]
        self._n += len(next(iter(values.values())))

    def results(self) -> Iterator[tuple[tuple[int, int], Float64Array, float]]:
        """Yield each pair, its sums of products of deviations (dim, dim), and its HSIC (Song et al. 2012, eq. 5)."""
        n = self._n
        for (i, j), product in self._products.items():
            one, two, inner = self._sums[i], self._sums[j], product[:-1, :-1]
            totals = [total[:-1] @ total[:-1] - total[-1] for total in (one, two)]
            # Row sums of the two matrices of all rows without their diagonals, multiplied row by row.
            rows = np.append(one[:-1], -1) @ product @ np.append(two[:-1], -1)
            hsic = np.square(inner).sum() - product[-1, -1] - 2 * rows / (n - 2)
            hsic += totals[0] * totals[1] / ((n - 1) * (n - 2))
            scale = self._frames[i][0] * self._frames[j][0]
            yield (i, j), scale * (inner - np.outer(one[:-1], two[:-1] / n)), float(hsic)


def effective_rank(scatter: Float64Array, total: float = 0.0) -> float:
    """Return the effective rank of a multiple of a covariance (dim, dim) (Roy & Vetterli 2007); NaN if rows are equal.

    It is the exponential of the entropy of the singular values, which are the covariance's eigenvalues, as shares. A
    variance that is only rounding error of the sum of all squares, `total`, does not count.
    """
    values = np.clip(np.linalg.eigvalsh(scatter), 0, None)
    if values.sum() <= _LEAST_VARIANCE * total:
        return np.nan
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def neighbors(rows: Float32Array, k: int, metric: Metric) -> tuple[npt.NDArray[Any], IntArray]:
    """Return the scores and the numbers (n, k) of the k nearest other rows of each row (n, dim)."""
    places = np.arange(len(rows), dtype=np.int64)
    settings: Any = {"prepare": lambda batch: batch, "exclude": places, "max_bytes": _MAX_BYTES, "dtype": np.float64}
    return nearest([(rows, places)], rows, k, metric, **settings)


def intrinsic_dimension(rows: Float32Array) -> float:
    """Return the two-nearest-neighbor dimension of different rows (n, dim) (Facco et al. 2017); NaN below 10."""
    # As in the paper, the line through the origin is fitted without the largest tenth of the ratios.
    # As bytes, rows are sorted much faster than as numbers; -0 becomes 0.
    whole = np.ascontiguousarray(rows + np.float32(0)).view(f"V{rows.itemsize * rows.shape[1]}").ravel()
    once = rows[np.unique(whole, return_index=True)[1]]
    if len(once) < _LEAST_POINTS:
        return np.nan
    distances = neighbors(once, 2, Metric.L2)[0]
    ratios = np.sort(np.log(distances[:, 1] / distances[:, 0]))
    kept = int(len(ratios) * (1 - _LEFT_OUT))
    expected = -np.log1p(-np.arange(1, kept + 1) / len(ratios))
    below = float(ratios[:kept] @ ratios[:kept])
    return float(expected @ ratios[:kept]) / below if below else np.nan


def centered_cosine(rows: Float32Array, mean: Float64Array) -> float:
    """Return the mean cosine of all pairs of rows (n, dim) after a mean (dim,) is subtracted."""
    units = _units(rows - mean)
    n_pairs = len(rows) * (len(rows) - 1)
    return float((np.square(units.sum(axis=0)).sum() - np.square(units).sum()) / n_pairs)


def rsa(one: Float32Array, two: Float32Array) -> float:
    """Return the Spearman correlation of cosines of 1,000 rows in two spaces (Kriegeskorte et al. 2008), or NaN."""
    chosen = np.linspace(0, len(one) - 1, min(len(one), _N_RSA_ROWS)).astype(np.int64)
    ranks = []
    for rows in (one[chosen], two[chosen]):
        cosines = _cosines(rows)[np.triu_indices(len(rows), 1)]
        # Equal values share the mean of their ranks.
        ranks.append(pl.Series(cosines).rank().to_numpy())
    return _correlation(ranks[0], ranks[1])


def _units(vectors: Float32Array | Float64Array) -> Float64Array:
    """Return vectors (n, dim) divided by their lengths; zero vectors stay zero."""
    lengths = norms_of(vectors)
    units: Float64Array = vectors / np.where(lengths > 0, lengths, 1)[:, None]
    return units


def _cosines(vectors: Float32Array | Float64Array) -> Float64Array:
    """Return the cosines of all pairs of vectors, (n, n), in float64, without the last digits: rounding error."""
    units = _units(vectors)
    return np.round(units @ units.T, 12)


def _correlation(one: Float64Array, two: Float64Array) -> float:
    """Return the Pearson correlation of two lists of numbers (n,); NaN where one is constant."""
    if not (len(one) and np.ptp(one) and np.ptp(two)):
        return np.nan
    first, second = one - one.mean(), two - two.mean()
    return float(first @ second / np.sqrt((first @ first) * (second @ second)))


def shifts(one: Float64Array, two: Float64Array) -> Float64Array:
    """Return how far words moved between two spaces, (n,): 0 not at all, about 1 no relation left, or NaN."""
    # One less the correlation of a word's cosines with all others, here and there (after Hamilton et al. 2016).
    sides = [_cosines(vectors) for vectors in (one, two)]
    places = range(len(one))
    return np.array([1 - _correlation(*(np.delete(cosines[place], place) for cosines in sides)) for place in places])
