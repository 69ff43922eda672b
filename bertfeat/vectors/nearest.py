"""Exact nearest neighbours: all vectors are compared with all queries, at the speed of float32 and exact in float64.

A float32 matrix product gives each pair a key with a known error bound. Only the pairs whose key plus bound reaches the
k-th best score so far are scored in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.records import Float32Array, Float64Array, IntArray

_UNIT = 2.0**-24  # the rounding of one float32 operation
_TINY = 1e-36  # above the error of float32 below its smallest normal number
_MAX_LENGTH = 1e18  # the product of two longer vectors may not fit into float32
_STEP_ROWS = 2048
_MAX_ROWS = 4096


class Metric(StrEnum):
    """A comparison of two vectors; the score is always the field's own."""

    COSINE = "cosine"  # in [-1, 1]; 0 where a vector is zero
    IP = "ip"  # the inner product
    L2 = "l2"  # the true distance, not its square

    @property
    def higher_is_better(self) -> bool:
        """Return whether a larger score means a closer pair."""
        return self is not Metric.L2


def parse_metric(name: str) -> Metric:
    """Return the metric of a name.

    Raises:
        UserError: The name is unknown; the message lists the metrics.
    """
    try:
        return Metric(name)
    except ValueError:
        raise UserError(f"metric {name!r}: unknown; choose one of {', '.join(Metric)}") from None


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
    """Find the k nearest vectors of each query by comparing all; the vectors are read once.

    Among equal scores the lower position wins.

    Args:
        batches: Vectors (n, any), and their positions, int64 (n,), which ascend from batch to batch.
        queries: float32 or float64 (n_queries, dim).
        k: The number of hits.
        metric: How vectors are compared.
        prepare: Turns vectors of a batch into float32 or float64 (n, dim), to be compared with the queries.
        exclude: int64 (n_queries,), a position that each query must not find; -1 for none.
        max_bytes: Working memory, besides queries, hits, and the batches.
        dtype: The type that scores, computed in float64, are rounded to before they are compared.

    Returns:
        The scores (n_queries, k), best first, NaN where there are fewer hits; and their positions, int64 (n_queries,
        k), -1 where there are fewer.

    Raises:
        UserError: A vector is too long to compare in float32.
    """
    asked = Comparison(queries, metric)
    best = _Best(len(queries), k, dtype)
    dim = queries.shape[1]
    max_rows = max(1, min(_MAX_ROWS, max_bytes // (32 * dim)))
    step = max(1, max_bytes // (64 * max_rows))
    for batch, numbers in batches:
        for first in range(0, len(numbers), max_rows):
            positions = numbers[first : first + max_rows]
            vectors = prepare(batch[first : first + max_rows])
            rows = asked.rows(vectors, positions)
            for start in range(0, len(queries), step):
                chunk = slice(start, min(start + step, len(queries)))
                out = _excluded(positions, None if exclude is None else exclude[chunk])
                query, row = asked.candidates(rows, chunk, k, best.last(chunk), out)
                best.add(query, asked.scores(vectors, query, row, max_bytes).astype(dtype), positions[row])
    return best.hits(metric)


def unit_length(vectors: Float32Array) -> Float32Array:
    """Return float32 (n, dim) vectors divided by their length; zero vectors stay zero."""
    out = np.empty_like(vectors)
    for start in range(0, len(vectors), _STEP_ROWS):
        rows = slice(start, start + _STEP_ROWS)
        lengths = lengths_of(vectors[rows])
        lengths[lengths == 0] = 1
        out[rows] = vectors[rows] / lengths[:, None]
    return out


def lengths_of(vectors: npt.NDArray[Any]) -> Float64Array:
    """Return the Euclidean lengths of (n, dim) vectors, float64 (n,)."""
    lengths: Float64Array = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1))
    return lengths


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Vectors as the matrix product takes them: `side`, float32 (n, dim).

    A product plus `raised`, float32 (n,), is a key that is not below the true one; a key minus `spread`, float32 (n,),
    is not above the true one. Both hold up to the query's own bound.
    """

    side: Float32Array
    raised: Float32Array
    spread: Float32Array


class Comparison:
    """Queries, float32 or float64 (n_queries, dim), and their comparison with vectors by a metric.

    Scores are signed so that larger is closer: L2 distances are negative.

    Raises:
        UserError: A query is too long to compare in float32.
    """

    def __init__(self, queries: npt.NDArray[Any], metric: Metric) -> None:
        self._exact = queries
        self._metric = metric
        self._lengths = lengths_of(queries)
        _check_lengths(self._lengths, "query", np.arange(len(queries)))
        # A product takes dim operations; the rest is for those before and after it, scores included.
        self._bound = (queries.shape[1] + 16) * _UNIT
        if metric is Metric.L2:
            # Distances do not change when both sides are shifted, and products near zero are more precise.
            self._shift = queries.mean(axis=0, dtype=np.float64).astype(np.float32) if len(queries) else np.float32(0)
            moved = (queries - self._shift).astype(np.float32)
            self._offsets = np.square(lengths_of(moved))
            self._side = 2 * moved
            self._slack = 2 * self._bound * self._offsets + _TINY
        else:
            self._side = unit_length(queries.astype(np.float32, copy=False))
            self._slack = np.full(len(queries), _TINY)

    def rows(self, vectors: npt.NDArray[Any], positions: IntArray) -> _Rows:
        """Prepare (n, dim) vectors for the comparison."""
        lengths = lengths_of(vectors)
        _check_lengths(lengths, "vector", positions)
        side, bias = vectors.astype(np.float32, copy=False), np.zeros(len(vectors))
        if self._metric is Metric.COSINE:
            side, errors = unit_length(side), np.full(len(vectors), self._bound)
        elif self._metric is Metric.IP:
            errors = self._bound * lengths
        else:
            side = (vectors - self._shift).astype(np.float32, copy=False)
            squares = np.square(lengths_of(side))
            bias, errors = -squares, 2 * self._bound * squares
        errors = errors + _TINY
        return _Rows(side, (bias + errors).astype(np.float32), (2 * errors).astype(np.float32))

    def candidates(
        self, rows: _Rows, chunk: slice, k: int, last: npt.NDArray[Any], excluded: tuple[IntArray, IntArray]
    ) -> tuple[IntArray, IntArray]:
        """Return the pairs that may be among the k best, as queries and rows, ordered by query and then by row.

        Args:
            rows: The vectors.
            chunk: The queries.
            k: The number of hits.
            last: float (n,), the k-th best score of each query so far; minus infinity where there are fewer.
            excluded: Pairs to leave out, as queries, counted from the start of the chunk, and rows.
        """
        keys = self._side[chunk] @ rows.side.T
        keys += rows.raised
        keys[excluded] = -np.inf
        floors = (self._keys_of(chunk, last) - self._slack[chunk]).astype(np.float32)
        chosen = keys >= floors[:, None]
        if np.count_nonzero(chosen) > 4 * k * len(keys) and k < keys.shape[1]:
            # This block alone has k pairs with at least this key.
            lowest = np.partition(keys - rows.spread, -k, axis=1)[:, -k] - 2 * self._slack[chunk]
            chosen = keys >= np.maximum(floors, lowest.astype(np.float32))[:, None]
        chosen[excluded] = False
        query, row = np.nonzero(chosen)
        return query + chunk.start, row

    def _keys_of(self, chunk: slice, scores: npt.NDArray[Any]) -> Float64Array:
        """Return the keys of pairs of these scores, float (n,)."""
        exact = scores.astype(np.float64)
        if self._metric is Metric.L2:
            return self._offsets[chunk] - np.square(exact)
        if self._metric is Metric.IP:
            lengths = self._lengths[chunk]
            return exact / np.where(lengths > 0, lengths, 1)
        return exact

    def scores(self, vectors: npt.NDArray[Any], query: IntArray, row: IntArray, max_bytes: int) -> Float64Array:
        """Return the signed scores of pairs, float64 (n_pairs,), computed in float64.

        Args:
            vectors: float (n, dim).
            query: int64 (n_pairs,), the query of each pair.
            row: int64 (n_pairs,), the vector of each pair.
            max_bytes: Working memory.
        """
        out = np.empty(len(query))
        max_pairs = max(1, max_bytes // (64 * self._exact.shape[1]))
        for start in range(0, len(query), max_pairs):
            pairs = slice(start, start + max_pairs)
            mine, theirs = self._exact[query[pairs]].astype(np.float64), vectors[row[pairs]].astype(np.float64)
            if self._metric is Metric.L2:
                out[pairs] = -np.sqrt(np.square(mine - theirs).sum(axis=1))
                continue
            products = (mine * theirs).sum(axis=1)
            if self._metric is Metric.COSINE:
                lengths = self._lengths[query[pairs]] * lengths_of(theirs)
                products = np.clip(products / np.where(lengths > 0, lengths, 1), -1, 1)
            out[pairs] = products
        return out


class _Best:
    """The best k signed scores of each query so far, descending, and their positions; positions must ascend."""

    def __init__(self, n_queries: int, k: int, dtype: type[np.floating[Any]]) -> None:
        self._k = k
        self._scores: npt.NDArray[Any] = np.full((n_queries, k), -np.inf, dtype=dtype)
        self._positions = np.full((n_queries, k), -1, dtype=np.int64)

    def last(self, chunk: slice) -> npt.NDArray[Any]:
        """Return the k-th best score, (n,); minus infinity where there are fewer."""
        return np.asarray(self._scores[chunk, -1])

    def add(self, query: IntArray, scores: npt.NDArray[Any], positions: IntArray) -> None:
        """Merge pairs, ordered by query and then by position, each array (n_pairs,)."""
        if not len(query):
            return
        touched, first, counts = np.unique(query, return_index=True, return_counts=True)
        shape = len(touched), int(counts.max())
        at = np.repeat(np.arange(len(touched)), counts), np.arange(len(query)) - np.repeat(first, counts)
        new_scores = np.full(shape, -np.inf, dtype=scores.dtype)
        new_positions = np.full(shape, -1, dtype=np.int64)
        new_scores[at], new_positions[at] = scores, positions
        all_scores = np.concatenate([self._scores[touched], new_scores], axis=1)
        all_positions = np.concatenate([self._positions[touched], new_positions], axis=1)
        # Stable: among equal scores the first has the lower position.
        order = np.argsort(-all_scores, axis=1, kind="stable")[:, : self._k]
        self._scores[touched] = np.take_along_axis(all_scores, order, axis=1)
        self._positions[touched] = np.take_along_axis(all_positions, order, axis=1)

    def hits(self, metric: Metric) -> tuple[npt.NDArray[Any], IntArray]:
        """Return scores with their true sign, and positions."""
        scores = self._scores if metric.higher_is_better else -self._scores
        return np.where(self._positions >= 0, scores, scores.dtype.type(np.nan)), self._positions


def _excluded(positions: IntArray, exclude: IntArray | None) -> tuple[IntArray, IntArray]:
    """Return the pairs to leave out of a block, as queries and rows."""
    if exclude is None:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    row = np.minimum(np.searchsorted(positions, exclude), len(positions) - 1)
    query = np.flatnonzero(positions[row] == exclude)
    return query, row[query]


def _check_lengths(lengths: Float64Array, what: str, positions: IntArray) -> None:
    too_long = np.flatnonzero(lengths > _MAX_LENGTH)
    if len(too_long):
        where, length = positions[too_long[0]], lengths[too_long[0]]
        raise UserError(f"{what} {where} has length {length:.1e}, too large to compare in float32; scale vectors down")
