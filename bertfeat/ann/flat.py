"""Searches a `Flat` index for exactly the closest vectors.

faiss compares many queries at once by a matrix product, which takes a distance as a difference of squares: between
vectors that are nearly alike nothing is left of it but rounding, and which of two equally close ones comes first is
left to chance. So a few more are asked for than are wanted, and these are scored again in float64. Where that does not
prove that no other vector can be among the closest, all are compared in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bertfeat.ann.exact import exact_search
from bertfeat.ann.metrics import Metric
from bertfeat.ann.searchparameters import search_parameters
from bertfeat.ann.structure import stored_vectors
from bertfeat.ann.transforms import Float32Array, Float64Array, lengths_of
from bertfeat.ann.vectorparts import ArrayParts
from bertfeat.records import BoolArray, IntArray

_N_MORE = 16
_UNIT = 2.0**-24  # the rounding of one float32 operation
_MAX_BYTES = 64 << 20
_STEP_ROWS = 4096


class FlatSearch:
    """Exact search of a faiss `Flat` index.

    Args:
        index: The index.
        metric: How vectors are compared; for cosine, the vectors in the index and queries are of unit length.
    """

    def __init__(self, index: Any, metric: Metric) -> None:
        self._index = index
        self._metric = Metric.L2 if metric is Metric.L2 else Metric.IP
        self._n_measured = 0
        self._max_length = 0.0

    def search(
        self, queries: Float32Array, k: int, allowed: BoolArray | None, selector: Any, n_allowed: int
    ) -> tuple[Float32Array, IntArray]:
        """Find the k closest vectors, at most `n_allowed`, of queries as the index takes them.

        Returns:
            Inner products or distances, float32 (n_queries, k), and positions, int64 (n_queries, k). Of equal scores
            the lower position comes first.
        """
        n_wide = min(n_allowed, k + _N_MORE)
        raw, positions = self._index.search(queries, n_wide, params=search_parameters(self._index, {}, selector))
        scores = self._scores(queries, positions)
        order = np.lexsort((positions, -scores if self._metric is Metric.IP else scores), axis=-1)[:, :k]
        scores, positions = np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)
        if n_wide < n_allowed:
            doubtful = np.flatnonzero(~self._is_proven(queries, scores[:, -1], raw[:, -1]))
            if len(doubtful):
                source = ArrayParts(stored_vectors(self._index))
                found = exact_search(source, queries[doubtful], k, self._metric, allowed=allowed)
                scores[doubtful], positions[doubtful] = found
        return scores, positions

    def _scores(self, queries: Float32Array, positions: IntArray) -> Float32Array:
        vectors = stored_vectors(self._index)
        out = np.empty(positions.shape, dtype=np.float32)
        step = max(1, _MAX_BYTES // (24 * positions.shape[1] * self._index.d))
        for start in range(0, len(queries), step):
            rows = slice(start, start + step)
            mine, theirs = queries[rows, None].astype(np.float64), vectors[positions[rows]].astype(np.float64)
            if self._metric is Metric.IP:
                out[rows] = (mine * theirs).sum(axis=2)
            else:
                out[rows] = np.sqrt(np.square(mine - theirs).sum(axis=2))
        return out

    def _is_proven(self, queries: Float32Array, worst: Float32Array, last: Float32Array) -> BoolArray:
        """Tell for which queries no vector that faiss left out can be as close as the worst hit.

        Args:
            queries: float32 (n_queries, dim).
            worst: float32 (n_queries,), the exact score of the last hit.
            last: float32 (n_queries,), what faiss computed for the last vector that it gave: others are no closer, but
                for twice the error of a sum of `dim` products in float32.
        """
        lengths, longest = lengths_of(queries), self._longest()
        kth, limit = worst.astype(np.float64), last.astype(np.float64)
        bound = 2 * (self._index.d + 16) * _UNIT
        proven: BoolArray
        if self._metric is Metric.IP:
            proven = kth - limit > bound * lengths * longest
        else:
            errors: Float64Array = bound * np.square(lengths + longest)
            proven = limit - np.square(kth) > errors
        return proven

    def _longest(self) -> float:
        """Return the length of the longest vector in the index; vectors are only ever added."""
        vectors = stored_vectors(self._index)
        for start in range(self._n_measured, len(vectors), _STEP_ROWS):
            block = vectors[start : start + _STEP_ROWS]
            self._max_length = max(self._max_length, float(lengths_of(block).max()))
        self._n_measured = len(vectors)
        return self._max_length
