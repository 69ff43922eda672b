"""Objectives of linear probes as sums over chunks of rows, and the search for their minimum.

Objectives are scikit-learn's, divided by C and the sum of the rows' weights, so that the same tolerance means the same:
strength / 2 * |w|^2 + mean loss, with strength = 1 / (C * sum of weights).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from bertfeat.records import Float64Array, IntArray
from bertfeat.vectors.array import Vectors, chunks_of

# Rows that are turned to float64 and multiplied at a time: small enough for the cache, large enough for BLAS.
_BLOCK_ROWS = 1024


class Loss:
    """Base of the losses of rows, given their scores: one output for two classes, else one for each class.

    `codes` are each row's class, (n_rows,), and `weights` those of the classes, (n_classes,).
    """

    def __init__(self, codes: IntArray, weights: Float64Array) -> None:
        self.n_outputs = 1 if len(weights) == 2 else len(weights)
        self.total_weight = float(len(codes))
        self._codes = codes
        self._weights = weights

    def of(self, rows: slice, scores: Float64Array) -> tuple[float, Float64Array]:
        """Return the summed loss of rows, and its gradient by their scores; both arrays are (n_rows, n_outputs)."""
        raise NotImplementedError


class LogisticLoss(Loss):
    """Cross-entropy of the softmax, or of the logistic function for two classes."""

    def __init__(self, codes: IntArray, weights: Float64Array) -> None:
        super().__init__(codes, weights)
        self.total_weight = float(weights[codes].sum())

    def of(self, rows: slice, scores: Float64Array) -> tuple[float, Float64Array]:
        """Return the summed loss of rows, and its gradient by their scores."""
        codes = self._codes[rows]
        weights = self._weights[codes]
        if self.n_outputs == 1:
            margins = scores[:, 0]
            losses = np.logaddexp(0, margins) - codes * margins
            slopes = (expit(margins) - codes)[:, None]
        else:
            own = (np.arange(len(codes)), codes)
            normalizer = logsumexp(scores, axis=1, keepdims=True)
            losses = normalizer[:, 0] - scores[own]
            slopes = np.exp(scores - normalizer)
            slopes[own] -= 1
        slopes *= weights[:, None]
        return float(weights @ losses), slopes


class SquaredHingeLoss(Loss):
    """Squared hinge of one class against the rest, summed over classes.

    As in liblinear, a row has the weight of its class in the score of that class, and the weight 1 in those of the
    others. With two classes it always has the weight of its class.
    """

    def of(self, rows: slice, scores: Float64Array) -> tuple[float, Float64Array]:
        """Return the summed loss of rows, and its gradient by their scores."""
        codes = self._codes[rows]
        own_weights = self._weights[codes]
        if self.n_outputs == 1:
            signs = (2.0 * codes - 1)[:, None]
            weights = own_weights[:, None]
        else:
            own = (np.arange(len(codes)), codes)
            signs = np.full(scores.shape, -1.0)
            signs[own] = 1
            weights = np.ones(scores.shape)
            weights[own] = own_weights
        gaps = np.maximum(0, 1 - signs * scores)
        pulls = weights * gaps
        return float((pulls * gaps).sum()), -2 * signs * pulls


class LinearObjective:
    """A penalized mean loss of linear scores and its gradient, one walk over the vectors for each evaluation.

    A point is the flat form of (n_outputs, dim + 1): weights, and the intercept as the last column. `strength` is the
    factor of half the squared weights.
    """

    def __init__(self, X: Vectors, loss: Loss, *, strength: float, penalizes_intercept: bool) -> None:
        self.shape = (loss.n_outputs, X.shape[1] + 1)
        self._X = X
        self._loss = loss
        self._strength = strength
        self._n_penalized = self.shape[1] - (not penalizes_intercept)

    def __call__(self, point: Float64Array) -> tuple[float, Float64Array]:
        """Return the value and the gradient at a point, flat as the point is."""
        table = point.reshape(self.shape)
        total = 0.0
        gradient = np.zeros(self.shape)
        for rows, vectors in chunks_of(self._X):
            for start in range(0, len(vectors), _BLOCK_ROWS):
                block = vectors[start : start + _BLOCK_ROWS].astype(np.float64)
                first = rows.start + start
                loss, slopes = self._loss.of(slice(first, first + len(block)), block @ table[:, :-1].T + table[:, -1])
                total += loss
                gradient[:, :-1] += slopes.T @ block
                gradient[:, -1] += slopes.sum(axis=0)
        penalized = table[:, : self._n_penalized]
        gradient /= self._loss.total_weight
        gradient[:, : self._n_penalized] += self._strength * penalized
        value = total / self._loss.total_weight + self._strength / 2 * float((penalized**2).sum())
        return value, gradient.ravel()


@dataclass(frozen=True, eq=False)
class Minimum:
    """The end of a search: `point` (n_outputs, dim + 1), whether it converged, and the number of iterations."""

    point: Float64Array
    converged: bool
    n_iter: int


def minimize_path(
    X: Vectors, loss: Loss, costs: Sequence[float], *, penalizes_intercept: bool, max_iter: int, tol: float
) -> Iterator[Minimum]:
    """Yield the minimum for each value of C; every search starts where the one before it ended.

    The search is L-BFGS with the settings of scikit-learn's LogisticRegression, on standardised vectors (n_rows, dim).
    """
    settings = {
        "maxiter": max_iter,
        "maxfun": 50 * max_iter,
        "maxls": 50,
        "gtol": tol,
        "ftol": 64 * np.finfo(float).eps,
    }
    point = np.zeros(loss.n_outputs * (X.shape[1] + 1))
    for cost in costs:
        strength = 1 / (cost * loss.total_weight)
        objective = LinearObjective(X, loss, strength=strength, penalizes_intercept=penalizes_intercept)
        found = minimize(objective, point, method="L-BFGS-B", jac=True, options=settings)
        point = found.x
        yield Minimum(point.reshape(objective.shape), bool(found.success), int(found.nit))
