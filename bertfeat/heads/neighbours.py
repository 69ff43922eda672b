"""Probes by distance: the nearest class mean, and the nearest training rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.heads.hyperparameters import choice, flag, positive_integer
from bertfeat.heads.matrices import VectorStream, as_matrix, chunks_of
from bertfeat.heads.rowprobe import (
    RowProbe,
    check_dev,
    check_training,
    dev_score,
)
from bertfeat.nearest import Metric, nearest
from bertfeat.records import Float64Array, IntArray

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
        classes_: The classes, sorted.
        scaling_: What vectors are standardised with.
    """

    head = "centroid"
    has_probabilities = False

    metric: str = "cosine"
    standardize: bool = True
    centroids_: npt.NDArray[np.float32] = field(init=False)

    def fit(self, X: object, y: npt.ArrayLike, *, dev: tuple[Any, Any] | None = None) -> Self:  # noqa: N803
        """Fit to vectors and labels.

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.
            y: Labels (n_rows,): strings, integers or booleans.
            dev: Vectors and labels to score in the report; nothing is chosen by them.

        Raises:
            UserError: A parameter, the data or dev cannot be used; the message says why.
        """
        self._check_parameters()
        rows = check_training(X, y)
        dev_rows = None if dev is None else check_dev(dev, rows.X.shape[1], rows.classes)
        scaling = self._fit_scaling(rows.X)
        n_classes = len(rows.classes)
        sums = np.zeros((n_classes, rows.X.shape[1]))
        for chunk, vectors in chunks_of(rows.X):
            scaled = scaling.apply(vectors)
            codes = rows.codes[chunk.start : chunk.stop]
            for code in np.unique(codes):
                sums[code] += scaled[codes == code].sum(axis=0, dtype=np.float64)
        self.classes_ = rows.classes
        self.scaling_ = scaling
        self.centroids_ = (sums / np.bincount(rows.codes, minlength=n_classes)[:, None]).astype(np.float32)
        self._report = {} if dev_rows is None else {"metric": "accuracy", "dev_score": dev_score(self, dev_rows)}
        return self

    def decision_function(self, X: object) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return how near the classes are, float32 (n_rows, n_classes): cosines, or minus Euclidean distances.

        Where there are two classes, it is by how much the second is nearer than the first, (n_rows,).

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        return self._walk(X, self._scores, np.float32)

    def _shapes(self, dim: int | None) -> dict[str, tuple[int | None, ...]]:
        return {"centroids": (len(self.classes_), dim)}

    def _check_parameters(self) -> None:
        choice("metric", self.metric, _METRICS)
        flag("standardize", self.standardize)

    def _scores(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
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

    It keeps all training vectors, as float16 where they are given so, else as float32; like scikit-learn it keeps the
    array that it is given where that has the right type, not a copy. Of rows equally near, the first ones vote.

    Args:
        k: How many rows vote.
        metric: "cosine" or "euclidean".
        weights: "uniform", or "distance" for each vote to count by one over its distance; a distance of 0 outvotes all.
        standardize: Whether vectors are standardised first.

    Attributes:
        vectors_: float16 or float32 (n_rows, dim), the training vectors.
        codes_: int64 (n_rows,), their classes as indices.
        classes_: The classes, sorted.
        scaling_: What vectors are standardised with.
    """

    head = "knn"
    streams = False

    k: int = 5
    metric: str = "cosine"
    weights: str = "uniform"
    standardize: bool = True
    vectors_: npt.NDArray[Any] = field(init=False)
    codes_: IntArray = field(init=False)

    def fit(self, X: object, y: npt.ArrayLike, *, dev: tuple[Any, Any] | None = None) -> Self:  # noqa: N803
        """Fit to vectors and labels: keep them.

        Args:
            X: Vectors (n_rows, dim), in memory.
            y: Labels (n_rows,): strings, integers or booleans.
            dev: Vectors and labels to score in the report; nothing is chosen by them.

        Raises:
            UserError: X is a stream, or a parameter, the data or dev cannot be used; the message says why.
        """
        self._check_parameters()
        matrix = as_matrix(X)
        if isinstance(matrix, VectorStream):
            n_rows, dim = matrix.shape
            raise UserError(
                f"head knn keeps all of its {n_rows} training rows in memory, {n_rows * dim * 4} bytes as float32; "
                "allow it more memory, train on fewer rows, or use another head, such as centroid or logreg"
            )
        rows = check_training(matrix, y)
        if self.k > len(rows.codes):
            raise UserError(f"k {self.k} is more than the {len(rows.codes)} training rows")
        dev_rows = None if dev is None else check_dev(dev, rows.X.shape[1], rows.classes)
        for _ in chunks_of(matrix):  # checks that all are finite
            pass
        self.vectors_ = matrix if matrix.dtype == np.float16 else matrix.astype(np.float32, copy=False)
        self.codes_ = rows.codes
        self.classes_ = rows.classes
        self.scaling_ = self._fit_scaling(matrix)
        self._report = {} if dev_rows is None else {"metric": "accuracy", "dev_score": dev_score(self, dev_rows)}
        return self

    def predict_proba(self, X: object) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return each class's share of the votes, float32 (n_rows, n_classes).

        Args:
            X: Vectors (n_rows, dim), in memory or as a stream.

        Raises:
            UserError: X has another width than it was fitted on, or a vector holds NaN or infinity.
        """
        return self._walk(X, self._scores, np.float32)

    def _shapes(self, dim: int | None) -> dict[str, tuple[int | None, ...]]:
        return {"vectors": (None, dim), "codes": (None,)}

    def _check_state(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        vectors, codes = arrays["vectors"], arrays["codes"]
        if vectors.dtype not in (np.float16, np.float32):
            raise UserError(f"the saved array vectors is {vectors.dtype}, not float16 or float32")
        if codes.dtype != np.int64 or len(codes) != len(vectors) or len(codes) < self.k:
            raise UserError(f"the saved probe has {len(codes)} codes ({codes.dtype}) for its training rows")
        if codes.min() < 0 or codes.max() >= len(self.classes_):
            raise UserError(f"the saved probe has codes beyond its {len(self.classes_)} classes")

    def _check_parameters(self) -> None:
        positive_integer("k", self.k)
        choice("metric", self.metric, _METRICS)
        choice("weights", self.weights, _WEIGHTS)
        flag("standardize", self.standardize)

    def _scores(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        distances, rows = self._nearest(vectors)
        shares = np.ones(distances.shape)
        if self.weights == "distance":
            at_zero = distances == 0
            shares = np.where(at_zero.any(axis=1, keepdims=True), at_zero, 1 / np.where(at_zero, 1, distances))
        votes = np.zeros((len(vectors), len(self.classes_)))
        for place in range(self.k):
            votes[np.arange(len(votes)), self.codes_[rows[:, place]]] += shares[:, place]
        return np.asarray(votes / votes.sum(axis=1, keepdims=True))

    def _nearest(self, vectors: npt.NDArray[np.float32]) -> tuple[Float64Array, IntArray]:
        """Return distances and rows of the k nearest training vectors, (n_rows, k); of equal ones the lower row first.

        Half the squared distance of unit vectors is the cosine distance. A zero vector has no direction: a dimension
        more for those of each side leaves it a distance of 1 from all others.
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


def _directions(vectors: npt.NDArray[np.float32], side: int) -> Float64Array:
    """Return vectors of unit length and two dimensions more; a zero vector has a 1 in that of its side."""
    directions = np.pad(vectors.astype(np.float64), ((0, 0), (0, 2)))
    norms = np.sqrt((directions * directions).sum(axis=1))
    directions[norms == 0, vectors.shape[1] + side] = 1
    directions /= np.where(norms == 0, 1, norms)[:, None]
    return directions
