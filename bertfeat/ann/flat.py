"""Exact search of a `Flat` index.

faiss takes a distance as a difference of squares, which between vectors that are nearly alike leaves rounding alone. So
it is asked for a few more than are wanted, and these are scored again in float64. Where its rounding may have hidden a
closer vector, all are compared in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bertfeat.ann.exact import exact_search
from bertfeat.ann.searchparameters import search_parameters
from bertfeat.ann.structure import stored_vectors
from bertfeat.ann.vectorparts import ArrayParts
from bertfeat.nearest import Comparison, Metric
from bertfeat.records import BoolArray, Float32Array, IntArray

_N_MORE = 16
_MAX_BYTES = 64 << 20
# Rounding among the vectors that faiss leaves out, as a multiple of the largest among those that it finds.
_MORE_ROUNDING = 4


def search_flat(
    index: Any, metric: Metric, queries: Float32Array, k: int, allowed: BoolArray | None, selector: Any, n_allowed: int
) -> tuple[Float32Array, IntArray]:
    """Find the k closest vectors, at most `n_allowed`, of queries as the index takes them.

    Returns:
        Inner products (cosine: of unit vectors) or distances, float32 (n_queries, k), and positions, int64 (n_queries,
        k). Of equal scores the lower position comes first.
    """
    metric = Metric.L2 if metric is Metric.L2 else Metric.IP
    vectors, n_wide = stored_vectors(index), min(n_allowed, k + _N_MORE)
    raw, positions = index.search(queries, n_wide, params=search_parameters(index, {}, selector))
    pairs = np.repeat(np.arange(len(queries)), n_wide), positions.ravel()
    signed = Comparison(queries, metric).scores(vectors, *pairs, _MAX_BYTES).reshape(positions.shape)
    order = np.lexsort((positions, -signed.astype(np.float32)), axis=-1)[:, :k]
    keys, raw_keys = (-np.square(signed), -raw) if metric is Metric.L2 else (signed, raw)
    limits = raw_keys[:, -1] + _MORE_ROUNDING * np.abs(keys - raw_keys).max(axis=1)
    doubtful = np.flatnonzero(np.take_along_axis(keys, order[:, -1:], axis=1)[:, 0] <= limits)
    found = np.take_along_axis(positions, order, axis=1)
    scores = np.abs(signed) if metric is Metric.L2 else signed
    scores = np.take_along_axis(scores, order, axis=1).astype(np.float32)
    if n_wide < n_allowed and len(doubtful):
        source = ArrayParts(vectors)
        scores[doubtful], found[doubtful] = exact_search(source, queries[doubtful], k, metric, allowed=allowed)
    return scores, found
