"""The nearest of some vectors by brute force, exact down to ties, in blocks that bound the memory."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bertfeat.heads.scaling import Scaling
from bertfeat.records import IntArray

Float64Array: TypeAlias = npt.NDArray[np.float64]

METRICS = ("cosine", "euclidean")

_QUERY_ROWS = 1024
_VECTOR_ROWS = 4096
# Values of the pairs whose distances are computed directly at a time: 16 MB of float64.
_PAIR_VALUES = 2 << 20
# Candidates beyond the wanted neighbours, so that ties at the border seldom need a second search.
_N_SPARE = 16


class ExactNeighbours:
    """Vectors to search, standardised on the way; those of equal distance come in the order of their rows.

    Products of matrices find candidates, but two equal vectors may get distances that differ in the last bit there. The
    distances of the candidates are therefore computed one by one; candidates are enough when the farthest of them lies
    beyond the k-th by more than rounding can explain, else more are taken.

    Args:
        vectors: float16 or float32 (n_vectors, dim).
        scaling: What vectors and queries are standardised with.
        metric: "cosine" (1 - cosine; 1 where a vector is zero) or "euclidean".
    """

    def __init__(self, vectors: npt.NDArray[Any], scaling: Scaling, metric: str) -> None:
        self._vectors = vectors
        self._scaling = scaling
        self._is_cosine = metric == "cosine"

    def search(self, queries: npt.NDArray[Any], k: int) -> tuple[Float64Array, IntArray]:
        """Return the distances and the rows of the k nearest vectors of each query, (n_queries, k) each, nearest first.

        Args:
            queries: (n_queries, dim), not standardised yet.
            k: How many; at most n_vectors.
        """
        distances = np.empty((len(queries), k))
        rows = np.empty((len(queries), k), np.int64)
        n_candidates = min(k + _N_SPARE, len(self._vectors))
        for start in range(0, len(queries), _QUERY_ROWS):
            part = slice(start, start + _QUERY_ROWS)
            points, gaps = self._prepare(queries[part])
            distances[part], rows[part] = self._nearest(points, gaps, k, n_candidates)
        return (distances / 2 if self._is_cosine else np.sqrt(distances)), rows

    def _prepare(self, vectors: npt.NDArray[Any]) -> tuple[Float64Array, Float64Array]:
        """Return standardised vectors and what adds to all of their squared distances.

        Half the squared distance of unit vectors is the cosine distance. A zero vector stays zero: 1 more makes its
        squared distance to unit vectors 2, as if it were at a right angle to all of them.
        """
        points = self._scaling.apply(vectors).astype(np.float64)
        gaps = np.zeros(len(points))
        if self._is_cosine:
            norms = np.sqrt((points * points).sum(axis=1))
            gaps[norms == 0] = 1
            points /= np.where(norms == 0, 1, norms)[:, None]
        return points, gaps

    def _nearest(self, points: Float64Array, gaps: Float64Array, k: int, n_candidates: int) -> tuple[Any, IntArray]:
        """Return the squared distances and rows of the k nearest vectors, found among so many candidates or more."""
        about, rows, slack = self._candidates(points, gaps, n_candidates)
        exact = self._squared_distances(points, gaps, rows)
        order = np.lexsort((rows, exact), axis=1)[:, :k]
        exact, nearest = np.take_along_axis(exact, order, axis=1), np.take_along_axis(rows, order, axis=1)
        if n_candidates < len(self._vectors):
            border = np.partition(about, k - 1, axis=1)[:, k - 1]
            unsure = about.max(axis=1) <= border + slack
            if unsure.any():
                more = min(8 * n_candidates, len(self._vectors))
                exact[unsure], nearest[unsure] = self._nearest(points[unsure], gaps[unsure], k, more)
        return exact, nearest

    def _candidates(
        self, points: Float64Array, gaps: Float64Array, n_candidates: int
    ) -> tuple[Float64Array, IntArray, Float64Array]:
        """Return rounded squared distances and rows of the nearest, unordered, and by how much two may be wrong."""
        n_points, dim = points.shape
        squares = (points * points).sum(axis=1) + gaps
        about = np.empty((n_points, 0))
        rows = np.empty((n_points, 0), np.int64)
        largest = 0.0
        for start in range(0, len(self._vectors), _VECTOR_ROWS):
            vectors, vector_gaps = self._prepare(self._vectors[start : start + _VECTOR_ROWS])
            vector_squares = (vectors * vectors).sum(axis=1) + vector_gaps
            largest = max(largest, float(vector_squares.max()))
            fresh = squares[:, None] + vector_squares - 2 * (points @ vectors.T)
            numbers = np.broadcast_to(np.arange(start, start + len(vectors)), fresh.shape)
            about, rows = np.hstack([about, fresh]), np.hstack([rows, numbers])
            if about.shape[1] > n_candidates:
                keep = np.argpartition(about, n_candidates - 1, axis=1)[:, :n_candidates]
                about, rows = np.take_along_axis(about, keep, axis=1), np.take_along_axis(rows, keep, axis=1)
        # Each of the three terms is a sum of dim products; twice, for two distances.
        slack = 4 * (dim + 8) * np.finfo(np.float64).eps * (squares + largest)
        return about, rows, slack

    def _squared_distances(self, points: Float64Array, gaps: Float64Array, rows: IntArray) -> Float64Array:
        """Return the squared distances of points to rows of the vectors, (n_points, n_rows), each summed on its own."""
        n_points, n_rows = rows.shape
        found = np.empty(n_points * n_rows)
        flat = rows.ravel()
        owners = np.repeat(np.arange(n_points), n_rows)
        step = max(1, _PAIR_VALUES // points.shape[1])
        for start in range(0, len(flat), step):
            part = slice(start, start + step)
            vectors, vector_gaps = self._prepare(self._vectors[flat[part]])
            vectors -= points[owners[part]]
            found[part] = (vectors * vectors).sum(axis=1) + vector_gaps + gaps[owners[part]]
        return found.reshape(n_points, n_rows)
