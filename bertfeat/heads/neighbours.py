"""Probes by distance: the nearest class mean, and the nearest training rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.heads.hyperparameters import choice, positive_integer
from bertfeat.heads.matrices import chunks_of
from bertfeat.heads.rowprobe import RowProbe, TrainingRows
from bertfeat.records import Float32Array, Float64Array, IntArray
from bertfeat.vectors.nearest import Metric, nearest

_METRICS = ("cosine", "euclidean")
_WEIGHTS = ("uniform", "distance")
# Working memory of a search for neighbours.
_SEARCH_BYTES = 64 << 20


@dataclass(kw_only=True, eq=False, repr=False)
class CentroidProbe(RowProbe):
    """The class whose mean vector is nearest; with the Euclidean metric, scikit-learn's NearestCentroid.

    Args:
        metric: "cosine" or "euclidean".
        standardize: Whether vectors are standardised first.

    Attributes:
        centroids_: float32 (n_classes, dim), the means of the standardised vectors of each class.
    """

    head = "centroid"
    has_probabilities = False
    _arrays = ("centroids",)

    metric: str = "cosine"
    standardize: bool = True
    centroids_: Float32Array = field(init=False)

    def _learn(self, rows: TrainingRows) -> None:
        sums = np.zeros((len(rows.classes), rows.X.shape[1]))
        for chunk, vectors in chunks_of(rows.X):
            scaled = self.scaling_.apply(vectors)
            codes = rows.codes[chunk.start : chunk.stop]
            for code in np.unique(codes):
                sums[code] += scaled[codes == code].sum(axis=0, dtype=np.float64)
        self.centroids_ = (sums / np.bincount(rows.codes)[:, None]).astype(np.float32)

    def decision_function(self, X: object) -> Float32Array:
        """Return cosines to the centroids, or minus Euclidean distances, float32 (n_rows, n_classes); see `predict`.

        For two classes, it is the second minus the first, (n_rows,).
        """
        return self._walk(X, self._scores, np.float32)

    def _check_parameters(self, *, has_dev: bool) -> None:
        super()._check_parameters(has_dev=has_dev)
        choice("metric", self.metric, _METRICS)

    def _scores(self, vectors: Float32Array) -> Float64Array:
        points = self.scaling_.apply(vectors).astype(np.float64)
        centroids = self.centroids_.astype(np.float64)
        norms = np.sqrt((points**2).sum(axis=1))[:, None]
        centroid_norms = np.sqrt((centroids**2).sum(axis=1))
        scores = points @ centroids.T
        if self.metric == "cosine":
            lengths = norms * centroid_norms
            scores /= np.where(lengths == 0, 1, lengths)
        else:
            scores = -np.sqrt(np.maximum(0, norms**2 + centroid_norms**2 - 2 * scores))
        return np.asarray(scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores)


@dataclass(kw_only=True, eq=False, repr=False)
class KNNProbe(RowProbe):
    """The vote of the k nearest training rows; with the Euclidean metric, scikit-learn's KNeighborsClassifier.

    It keeps all training vectors in memory: float16 vectors as they are, others as float32. Like scikit-learn it keeps
    the array itself, not a copy, if the type is right. Of rows at the same distance, the first ones vote.

    Args:
        k: The number of rows that vote.
        metric: "cosine" or "euclidean".
        weights: "uniform", or "distance" to weight each vote by one over its distance; a distance of 0 outvotes all.
        standardize: Whether vectors are standardised first.

    Attributes:
        vectors_: float16 or float32 (n_rows, dim), the training vectors.
        codes_: int64 (n_rows,), their classes as indices.
    """

    head = "knn"
    streams = False
    _arrays = ("vectors", "codes")

    k: int = 5
    metric: str = "cosine"
    weights: str = "uniform"
    standardize: bool = True
    vectors_: npt.NDArray[Any] = field(init=False)
    codes_: IntArray = field(init=False)

    def _learn(self, rows: TrainingRows) -> None:
        if self.k > len(rows.codes):
            raise UserError(f"k {self.k} is more than the {len(rows.codes)} training rows")
        X = np.asarray(rows.X)
        for _ in chunks_of(X):  # raises for a vector with NaN or infinity
            pass
        self.vectors_ = X if X.dtype == np.float16 else X.astype(np.float32, copy=False)
        self.codes_ = rows.codes

    def predict_proba(self, X: object) -> Float32Array:
        """Return the share of each class in the votes, float32 (n_rows, n_classes); see `predict`."""
        return self._walk(X, self._scores, np.float32)

    def _check_parameters(self, *, has_dev: bool) -> None:
        super()._check_parameters(has_dev=has_dev)
        positive_integer("k", self.k)
        choice("metric", self.metric, _METRICS)
        choice("weights", self.weights, _WEIGHTS)

    def _scores(self, vectors: Float32Array) -> Float64Array:
        distances, rows = self._nearest(vectors)
        shares = np.ones(distances.shape)
        if self.weights == "distance":
            at_zero = distances == 0
            shares = np.where(at_zero.any(axis=1, keepdims=True), at_zero, 1 / np.where(at_zero, 1, distances))
        votes = np.zeros((len(vectors), len(self.classes_)))
        for place in range(self.k):
            votes[np.arange(len(votes)), self.codes_[rows[:, place]]] += shares[:, place]
        return np.asarray(votes / votes.sum(axis=1, keepdims=True))

    def _nearest(self, vectors: Float32Array) -> tuple[Float64Array, IntArray]:
        """Return distances and rows of the k nearest training vectors, (n_rows, k); of equal ones the lower row first.

        Half the squared distance of unit vectors is the cosine distance. A zero vector has no direction: two more
        dimensions, one for zero vectors of each side, give it the distance 1 to all others.
        """
        is_cosine = self.metric == "cosine"

        def prepare(some: npt.NDArray[Any], side: int = 1) -> npt.NDArray[Any]:
            scaled = self.scaling_.apply(some)
            return _directions(scaled, side) if is_cosine else scaled

        known = [(self.vectors_, np.arange(len(self.vectors_)))]
        distances, rows = nearest(
            known,
            prepare(vectors, side=0),
            self.k,
            Metric.L2,
            prepare=prepare,
            max_bytes=_SEARCH_BYTES,
            dtype=np.float64,
        )
        return distances**2 / 2 if is_cosine else distances, rows


def _directions(vectors: Float32Array, side: int) -> Float64Array:
    """Return unit vectors, padded by two columns so that a zero vector has cosine 0 with every other vector."""
    directions = np.pad(vectors.astype(np.float64), ((0, 0), (0, 2)))
    norms = np.sqrt((directions * directions).sum(axis=1))
    directions[norms == 0, vectors.shape[1] + side] = 1
    directions /= np.where(norms == 0, 1, norms)[:, None]
    return directions
