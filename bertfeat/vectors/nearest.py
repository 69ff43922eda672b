"""Exact nearest neighbors: products in float32 find the pairs that may be among the best, float64 scores them."""
# NumPy computes the products: on two cores with AVX-512 in a quarter of the time of `faiss.knn`.

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.records import Float32Array, Float64Array, IntArray

_UNIT = 2.0**-24  # the rounding of one float32 operation
_TINY = 1e-36  # above the error of float32 below its smallest normal number
_MAX_ROWS = 4096
_STEP_ROWS = 2048


class Metric(StrEnum):
    """A comparison of two vectors; the score is always the field's own."""

    COSINE = "cosine"  # in [-1, 1]; 0 where a vector is zero
    IP = "ip"  # the inner product
    L2 = "l2"  # the true distance, not its square

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score means a closer pair."""
        return self is not Metric.L2


def nearest(
    batches: Iterable[tuple[npt.NDArray[Any], IntArray]],
    queries: npt.NDArray[Any],
    k: int,
    metric: Metric,
    *,
    prepare: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    exclude: IntArray | None = None,
    max_bytes: int,
    dtype: type[np.floating[Any]] = np.float32,
) -> tuple[npt.NDArray[Any], IntArray]:
    """Return scores, best first, and positions of each query's k nearest vectors, (n_queries, k); else NaN and -1.

    Batches are vectors (n, any) and their positions, int64 (n,), which ascend from batch to batch. `prepare` makes the
    vectors comparable with the queries: both float32 or float64, (n, dim) and (n_queries, dim). `exclude`, int64
    (n_queries,), are positions that queries must not find, -1 for none. `max_bytes` is the working memory besides
    queries, hits and batches. Scores are computed in float64; among equal ones the lower position wins.
    """
    keys = _Keys(queries, metric)
    scores: npt.NDArray[Any] = np.full((len(queries), k), -np.inf, dtype=dtype)
    positions = np.full((len(queries), k), -1, dtype=np.int64)
    max_rows = max(1, min(_MAX_ROWS, max_bytes // (32 * queries.shape[1])))
    step = max(1, max_bytes // (64 * max_rows))
    for batch, numbers in batches:
        for first in range(0, len(numbers), max_rows):
            here = numbers[first : first + max_rows]
            vectors = prepare(batch[first : first + max_rows])
            side = keys.side(vectors)
            for start in range(0, len(queries), step):
                chunk = slice(start, start + step)
                query, row = keys.candidates(side, k + (exclude is not None), chunk, scores[chunk, -1])
                if exclude is not None:
                    kept = here[row] != exclude[query]
                    query, row = query[kept], row[kept]
                found = signed_scores(queries, vectors, query, row, metric, max_bytes=max_bytes).astype(dtype)
                _merge(scores, positions, query, found, here[row])
    scores[positions < 0] = np.nan
    return scores if metric.higher_is_better else -scores, positions


def unit_length(vectors: Float32Array) -> Float32Array:
    """Return float32 (n, dim) vectors divided by their length; zero vectors stay zero."""
    out = np.empty_like(vectors)
    for start in range(0, len(vectors), _STEP_ROWS):
        rows = slice(start, start + _STEP_ROWS)
        lengths = norms_of(vectors[rows])
        lengths[lengths == 0] = 1
        out[rows] = vectors[rows] / lengths[:, None]
    return out


def norms_of(vectors: npt.NDArray[Any]) -> Float64Array:
    """Return the Euclidean lengths of (n, dim) vectors, float64 (n,)."""
    lengths: Float64Array = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    return lengths


def signed_scores(
    queries: npt.NDArray[Any],
    vectors: npt.NDArray[Any],
    query: IntArray,
    row: IntArray,
    metric: Metric,
    *,
    max_bytes: int,
) -> Float64Array:
    """Return the scores of pairs of rows (`query`, `row`), float64 (n_pairs,); L2 distances are negative."""
    out = np.empty(len(query))
    max_pairs = max(1, max_bytes // (64 * queries.shape[1]))
    for start in range(0, len(query), max_pairs):
        pairs = slice(start, start + max_pairs)
        mine, theirs = queries[query[pairs]].astype(np.float64), vectors[row[pairs]].astype(np.float64)
        if metric is Metric.L2:
            out[pairs] = -np.sqrt(np.square(mine - theirs).sum(axis=1))
            continue
        products = (mine * theirs).sum(axis=1)
        if metric is Metric.COSINE:
            lengths = norms_of(mine) * norms_of(theirs)
            products = np.clip(products / np.where(lengths > 0, lengths, 1), -1, 1)
        out[pairs] = products
    return out


class _Keys:
    """Keys of pairs in float32, larger where a pair is closer, with a known error."""

    def __init__(self, queries: npt.NDArray[Any], metric: Metric) -> None:
        self._metric = metric
        # A product takes dim operations; the rest is for those before and after it, scores included.
        self._bound = (queries.shape[1] + 16) * _UNIT
        # Distances do not change when both sides are shifted, and products near zero are more precise.
        is_l2 = metric is Metric.L2 and len(queries)
        self._shift = queries.mean(axis=0, dtype=np.float64).astype(np.float32) if is_l2 else np.float32(0)
        self._queries = self.side(queries)
        self._squares = _squares(self._queries)

    def side(self, vectors: npt.NDArray[Any]) -> Float32Array:
        """Return float (n, dim) vectors as they are compared, float32 (n, dim)."""
        if self._metric is Metric.COSINE:
            return unit_length(vectors.astype(np.float32, copy=False))
        return (vectors - self._shift).astype(np.float32, copy=False)

    def candidates(self, side: Float32Array, k: int, chunk: slice, last: npt.NDArray[Any]) -> tuple[IntArray, IntArray]:
        """Return the pairs of a chunk of queries that may beat their k-th best scores so far, `last` (n_queries,)."""
        keys, mine, theirs = self._queries[chunk] @ side.T, self._squares[chunk], _squares(side)
        if self._metric is Metric.L2:
            # The negative squared distance, without the square of the query.
            keys *= 2
            keys -= theirs.astype(np.float32)
            errors, floors = 2 * (mine + theirs.max()), mine - np.square(last.astype(np.float64))
        else:
            errors, floors = np.sqrt(mine * theirs.max()), last.astype(np.float64)
        # Both of two keys that are compared may be rounded.
        errors = 2 * (self._bound * errors + _TINY)
        lowest = (floors - errors).astype(np.float32)
        chosen = keys >= lowest[:, None]
        if np.count_nonzero(chosen) > 4 * k * len(keys) and k < keys.shape[1]:
            # This block alone has k pairs with at least this key.
            reached = np.partition(keys, -k, axis=1)[:, -k] - errors
            chosen = keys >= np.maximum(lowest, reached.astype(np.float32))[:, None]
        query, row = np.nonzero(chosen)
        return query + chunk.start, row


def _squares(vectors: Float32Array) -> Float64Array:
    """Return the squared lengths of (n, dim) vectors, float64 (n,)."""
    squares: Float64Array = np.einsum("ij,ij->i", vectors, vectors).astype(np.float64)
    return squares


def _merge(
    scores: npt.NDArray[Any], positions: IntArray, query: IntArray, new_scores: npt.NDArray[Any], new: IntArray
) -> None:
    """Merge pairs, ordered by query and then by position, each array (n_pairs,), into the best k of each query."""
    if not len(query):
        return
    touched, first, counts = np.unique(query, return_index=True, return_counts=True)
    shape = len(touched), int(counts.max())
    at = np.repeat(np.arange(len(touched)), counts), np.arange(len(query)) - np.repeat(first, counts)
    more_scores: npt.NDArray[Any] = np.full(shape, -np.inf, dtype=scores.dtype)
    more = np.full(shape, -1, dtype=np.int64)
    more_scores[at], more[at] = new_scores, new
    all_scores = np.concatenate([scores[touched], more_scores], axis=1)
    all_positions = np.concatenate([positions[touched], more], axis=1)
    # Stable: among equal scores the first has the lower position.
    order = np.argsort(-all_scores, axis=1, kind="stable")[:, : scores.shape[1]]
    scores[touched] = np.take_along_axis(all_scores, order, axis=1)
    positions[touched] = np.take_along_axis(all_positions, order, axis=1)
