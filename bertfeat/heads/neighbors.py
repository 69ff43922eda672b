"""Probes by distance: the nearest class mean, and the nearest training rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.utils.metaestimators import available_if

from bertfeat.choices import Task
from bertfeat.errors import UserError
from bertfeat.heads.row_probe import Dev, RowProbe
from bertfeat.heads.targets import Targets
from bertfeat.records import Float32Array, Float64Array, IntArray
from bertfeat.vectors.array import ArrayVectors, FloatArray, Vectors, chunks_of
from bertfeat.vectors.nearest import Metric, nearest

# Working memory of a search for neighbors.
_SEARCH_BYTES = 64 << 20
# Cosines of equal vectors differ from 1 by less, which is rounding.
_COSINE_ROUNDING = 1e-12


@dataclass(kw_only=True, eq=False, repr=False)
class CentroidProbe(RowProbe):
    """The class whose mean vector is nearest; with the Euclidean metric, scikit-learn's NearestCentroid.

    Args:
        metric: "cosine" or "euclidean".
        standardize: Whether vectors are standardized first.

    Attributes:
        centroids_: float32 (n_classes, dim), the means of the standardized vectors of each class.
    """

    head = "centroid"
    choices: ClassVar = {"metric": ("cosine", "euclidean")}
    _arrays = ("centroids",)

    metric: str = "cosine"
    standardize: bool = True
    centroids_: Float32Array = field(init=False)

    def _fit(self, X: Vectors, codes: IntArray, dev: Dev | None) -> dict[str, Any]:  # noqa: ARG002
        sums = np.zeros((len(self.classes_), X.shape[1]))
        for rows, vectors in chunks_of(X):
            scaled = self.scaling_.apply(vectors)
            own = codes[rows.start : rows.stop]
            for code in np.unique(own):
                sums[code] += scaled[own == code].sum(axis=0, dtype=np.float64)
        self.centroids_ = (sums / np.bincount(codes)[:, None]).astype(np.float32)
        return {}

    def decision_function(self, X: object) -> Float32Array:
        """Return cosines, or minus distances, to the centroids, (n_rows, n_classes); of two, second minus first."""
        return self._walk(X, self._scores, np.float32)

    def _scores(self, vectors: FloatArray) -> Float64Array:
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
    """The vote of the k nearest training rows, or the mean of their numbers.

    With the Euclidean metric it is scikit-learn's KNeighborsClassifier, or KNeighborsRegressor.

    It keeps all training vectors in memory: float16 vectors as they are, others as float32. Like scikit-learn it keeps
    the array itself, not a copy, if the type is right. Of rows at the same distance, the first ones vote.

    Args:
        task: What it learns: "classify", a class per row, or "regress", one or several numbers.
        k: The number of rows that vote.
        metric: "cosine" or "euclidean".
        weights: "uniform", or "distance" to weight each vote by one over its distance; a distance of 0 outvotes all.
        standardize: Whether vectors are standardized first.

    Attributes:
        vectors_: float16 or float32 (n_rows, dim), the training vectors.
        codes_: int64 (n_rows,), their classes as indices; or float64 (n_rows, n_targets), their numbers.
    """

    head = "knn"
    choices: ClassVar = {
        "task": (Task.CLASSIFY, Task.REGRESS),
        "metric": ("cosine", "euclidean"),
        "weights": ("uniform", "distance"),
    }
    _arrays = ("vectors", "codes")

    task: str = "classify"
    k: int = 5
    metric: str = "cosine"
    weights: str = "uniform"
    standardize: bool = True
    vectors_: npt.NDArray[Any] = field(init=False)
    codes_: Targets = field(init=False)

    def _fit(self, X: Vectors, targets: Targets, dev: Dev | None) -> dict[str, Any]:  # noqa: ARG002
        n_rows, dim = X.shape
        if not isinstance(X, ArrayVectors):
            raise UserError(
                f"head knn keeps all of its {n_rows} training rows in memory, {n_rows * dim * 4} bytes as float32; "
                "allow it more memory, train on fewer rows, or use another head, such as centroid or logreg"
            )
        if self.k > n_rows:
            raise UserError(f"k {self.k} is more than the {n_rows} training rows")
        vectors = X.whole()
        self.vectors_ = vectors if vectors.dtype == np.float16 else vectors.astype(np.float32, copy=False)
        self.codes_ = targets
        return {}

    @available_if(lambda self: self.task != Task.REGRESS)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: object) -> Float32Array:
        """Return the share of each class in the votes, float32 (n_rows, n_classes); see `predict`."""
        return self._walk(X, self._scores, np.float32)

    def _scores(self, vectors: FloatArray) -> Float64Array:
        # Of each vector its nearest training rows and their shares in the vote, (n_rows, k) each.
        scores, rows = nearest(
            [(self.vectors_, np.arange(len(self.vectors_)))],
            self.scaling_.apply(vectors),
            self.k,
            Metric.COSINE if self.metric == "cosine" else Metric.L2,
            prepare=self.scaling_.apply,
            max_bytes=_SEARCH_BYTES,
            dtype=np.float64,
        )
        distances = scores
        if self.metric == "cosine":
            distances = np.where(scores > 1 - _COSINE_ROUNDING, 0, 1 - scores)
        shares = np.ones(distances.shape)
        if self.weights == "distance":
            at_zero = distances == 0
            shares = np.where(at_zero.any(axis=1, keepdims=True), at_zero, 1 / np.where(at_zero, 1, distances))
        shares /= shares.sum(axis=1, keepdims=True)
        if self.task == Task.REGRESS:
            return np.asarray(np.einsum("nk,nkt->nt", shares, self.codes_[rows]))
        votes = np.zeros((len(vectors), len(self.classes_)))
        for place in range(self.k):
            votes[np.arange(len(votes)), self.codes_[rows[:, place]]] += shares[:, place]
        return votes
