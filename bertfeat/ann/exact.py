"""Exact search: every vector compared with every query. Slow, and the truth that indexes are measured against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.ann.metrics import Metric
from bertfeat.ann.transforms import Float32Array, Float64Array, Transform, lengths_of, prepare, unit_length
from bertfeat.ann.vectorparts import VectorParts, all_batches, checked, checked_queries
from bertfeat.errors import UserError
from bertfeat.records import BoolArray, IntArray

# How it stays exact at the speed of float32: a matrix product gives each pair a key that is wrong by no more than a
# known bound. Only the pairs whose key, raised by the bound, reaches the k-th best score so far are scored in float64.
_UNIT = 2.0**-24  # the rounding of one float32 operation
_TINY = 1e-36  # more than what float32 loses below its smallest normal number
_MAX_LENGTH = 1e18  # the product of two longer vectors may not fit float32
_MAX_ROWS = 4096
_DEFAULT_BYTES = 256 * 2**20


def exact_search(
    source: VectorParts,
    queries: npt.NDArray[Any],
    k: int,
    metric: Metric,
    transform: Transform | None = None,
    *,
    allowed: BoolArray | None = None,
    exclude: IntArray | None = None,
    max_bytes: int = _DEFAULT_BYTES,
) -> tuple[Float32Array, IntArray]:
    """Find the k closest vectors of each query, by comparing all; the source is read once.

    Scores are computed in float64 from the transformed float32 vectors and rounded once. Of equal scores the lower
    position comes first, and gets the last place.

    Args:
        source: The vectors, raw.
        queries: float (n_queries, dim), raw.
        k: How many to find.
        metric: How vectors are compared.
        transform: What is done to both sides first.
        allowed: bool (n_vectors,), which vectors may be found; None for all.
        exclude: int64 (n_queries,), a position to leave out of each query's hits, for a query that is itself in the
            source; -1 for none.
        max_bytes: Working memory, next to queries, hits, and the source's own batches.

    Returns:
        The scores, float32 (n_queries, k), best first, NaN where there are fewer hits; and their positions, int64
        (n_queries, k), -1 where there are fewer.

    Raises:
        UserError: k is below 1, an array has another shape than these, or a vector holds NaN, infinity, or numbers too
            large to compare in float32.
    """
    queries = checked_queries(queries, source.dim)
    _check_arguments(len(queries), k, source.n_vectors, allowed, exclude)
    asked = _Queries(prepare(queries, transform, Metric.IP), metric)
    best = _Best(len(queries), k)
    max_rows = max(1, min(_MAX_ROWS, max_bytes // (32 * source.dim)))
    step = max(1, max_bytes // (64 * max_rows))
    max_pairs = max(1, max_bytes // (64 * asked.dim))
    for vectors, positions in _blocks(source, allowed, max_rows):
        rows = asked.rows(prepare(vectors, transform, Metric.IP), positions)
        for start in range(0, len(queries), step):
            chunk = slice(start, min(start + step, len(queries)))
            out = _excluded(positions, None if exclude is None else exclude[chunk])
            query, row = asked.candidates(rows, chunk, k, best.last(chunk), out)
            best.add(query, asked.scores(rows, query, row, max_pairs), positions[row])
    return best.hits(metric)


def exact_scores(
    source: VectorParts,
    queries: npt.NDArray[Any],
    positions: IntArray,
    metric: Metric,
    transform: Transform | None = None,
) -> Float32Array:
    """Return the scores of given pairs, as `exact_search` computes them; the source is read once.

    Without a transform, or with one that only centres, they are equal to the bit. One with a matrix may round the last
    bit of a vector otherwise (`Transform.apply`).

    Args:
        source: The vectors, raw.
        queries: float (n_queries, dim), raw.
        positions: int64 (n_queries, k), the vectors to compare each query with; -1 for none.
        metric: How vectors are compared.
        transform: What is done to both sides first.

    Returns:
        float32 (n_queries, k), NaN where the position is -1.

    Raises:
        UserError: As `exact_search`.
    """
    asked = _Queries(prepare(checked_queries(queries, source.dim), transform, Metric.IP), metric)
    out = np.full(positions.size, np.nan, dtype=np.float32)
    order = np.argsort(positions, axis=None, kind="stable")
    ordered = positions.ravel()[order]
    wanted = np.zeros(source.n_vectors, dtype=bool)
    wanted[ordered[ordered >= 0]] = True
    for vectors, found in _blocks(source, wanted, _MAX_ROWS):
        rows = asked.rows(prepare(vectors, transform, Metric.IP), found)
        here = slice(*np.searchsorted(ordered, [found[0], found[-1] + 1]))
        query, row = order[here] // positions.shape[1], np.searchsorted(found, ordered[here])
        scores = asked.scores(rows, query, row, max(1, _DEFAULT_BYTES // (64 * asked.dim)))
        out[order[here]] = scores if metric.higher_is_better else -scores
    return out.reshape(positions.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Vectors to compare with: `exact` as they are, `side` as the matrix product takes them, both float32 (n, dim).

    `raised`, float32 (n,), is added to products to give keys that the true ones do not exceed; keys less `spread`,
    float32 (n,), do not exceed the true ones. Both hold but for the query's own bound.
    """

    exact: Float32Array
    lengths: Float64Array
    side: Float32Array
    raised: Float32Array
    spread: Float32Array


class _Queries:
    """Queries, and how they are compared. Scores are signed so that larger is closer: L2 distances are negative."""

    def __init__(self, queries: Float32Array, metric: Metric) -> None:
        self.dim = queries.shape[1]
        self._exact = queries
        self._metric = metric
        self._lengths = lengths_of(queries)
        _check_lengths(self._lengths, "query", np.arange(len(queries)))
        # The products are dim operations long; the rest is for what comes before and after them, scores included.
        self._bound = (self.dim + 16) * _UNIT
        if metric is Metric.L2:
            # Distances do not change when both sides move, and products near zero are the more precise ones.
            self._shift = queries.mean(axis=0, dtype=np.float64).astype(np.float32) if len(queries) else np.float32(0)
            moved = queries - self._shift
            self._offsets = np.square(lengths_of(moved))
            self._side = 2 * moved
            self._slack = 2 * self._bound * self._offsets + _TINY
        else:
            self._side = unit_length(queries)
            self._slack = np.full(len(queries), _TINY)

    def rows(self, vectors: Float32Array, positions: IntArray) -> _Rows:
        """Make float32 (n, dim) vectors ready to be compared."""
        lengths = lengths_of(vectors)
        _check_lengths(lengths, "vector", positions)
        side, bias = vectors, np.zeros(len(vectors))
        if self._metric is Metric.COSINE:
            side, errors = unit_length(vectors), np.full(len(vectors), self._bound)
        elif self._metric is Metric.IP:
            errors = self._bound * lengths
        else:
            side = vectors - self._shift
            squares = np.square(lengths_of(side))
            bias, errors = -squares, 2 * self._bound * squares
        errors = errors + _TINY
        raised = (bias + errors).astype(np.float32)
        return _Rows(vectors, lengths, side, raised, (2 * errors).astype(np.float32))

    def candidates(
        self, rows: _Rows, chunk: slice, k: int, last: Float32Array, excluded: tuple[IntArray, IntArray]
    ) -> tuple[IntArray, IntArray]:
        """Return the pairs that may be among the k best, as queries and rows, ordered by query and then by row.

        Args:
            rows: The vectors.
            chunk: The queries.
            k: How many are wanted.
            last: float32 (n,), the k-th best score of each query so far; minus infinity where there are fewer.
            excluded: Pairs to leave out: queries, counted from the start of the chunk, and rows.
        """
        keys = self._side[chunk] @ rows.side.T
        keys += rows.raised
        keys[excluded] = -np.inf
        floors = (self._keys_of(chunk, last) - self._slack[chunk]).astype(np.float32)
        chosen = keys >= floors[:, None]
        if np.count_nonzero(chosen) > 4 * k * len(keys) and k < keys.shape[1]:
            # The block alone has k pairs whose key is at least this.
            lowest = np.partition(keys - rows.spread, -k, axis=1)[:, -k] - 2 * self._slack[chunk]
            chosen = keys >= np.maximum(floors, lowest.astype(np.float32))[:, None]
        chosen[excluded] = False
        query, row = np.nonzero(chosen)
        return query + chunk.start, row

    def _keys_of(self, chunk: slice, scores: Float32Array) -> Float64Array:
        """Return the keys of pairs of these scores, float32 (n,)."""
        exact = scores.astype(np.float64)
        if self._metric is Metric.L2:
            return self._offsets[chunk] - np.square(exact)
        if self._metric is Metric.IP:
            lengths = self._lengths[chunk]
            return exact / np.where(lengths > 0, lengths, 1)
        return exact

    def scores(self, rows: _Rows, query: IntArray, row: IntArray, max_pairs: int) -> Float32Array:
        """Return the signed scores of pairs, float32 (n_pairs,), computed in float64."""
        out = np.empty(len(query), dtype=np.float32)
        for start in range(0, len(query), max_pairs):
            pairs = slice(start, start + max_pairs)
            q, r = query[pairs], row[pairs]
            mine, theirs = self._exact[q].astype(np.float64), rows.exact[r].astype(np.float64)
            if self._metric is Metric.L2:
                out[pairs] = -np.sqrt(np.square(mine - theirs).sum(axis=1))
                continue
            products = (mine * theirs).sum(axis=1)
            if self._metric is Metric.COSINE:
                lengths = self._lengths[q] * rows.lengths[r]
                products = np.clip(products / np.where(lengths > 0, lengths, 1), -1, 1)
            out[pairs] = products
        return out


class _Best:
    """The best k signed scores of each query so far, falling, and their positions; vectors come by rising position."""

    def __init__(self, n_queries: int, k: int) -> None:
        self._k = k
        self._scores = np.full((n_queries, k), -np.inf, dtype=np.float32)
        self._positions = np.full((n_queries, k), -1, dtype=np.int64)

    def last(self, chunk: slice) -> Float32Array:
        """Return the k-th best score, float32 (n,); minus infinity where there are fewer."""
        return np.asarray(self._scores[chunk, -1])

    def add(self, query: IntArray, scores: Float32Array, positions: IntArray) -> None:
        """Merge pairs, ordered by query and then by position, each array (n_pairs,)."""
        if not len(query):
            return
        touched, first, counts = np.unique(query, return_index=True, return_counts=True)
        shape = len(touched), int(counts.max())
        at = np.repeat(np.arange(len(touched)), counts), np.arange(len(query)) - np.repeat(first, counts)
        new_scores = np.full(shape, -np.inf, dtype=np.float32)
        new_positions = np.full(shape, -1, dtype=np.int64)
        new_scores[at], new_positions[at] = scores, positions
        all_scores = np.concatenate([self._scores[touched], new_scores], axis=1)
        all_positions = np.concatenate([self._positions[touched], new_positions], axis=1)
        # Stable: of equal scores, what came first has the lower position.
        order = np.argsort(-all_scores, axis=1, kind="stable")[:, : self._k]
        self._scores[touched] = np.take_along_axis(all_scores, order, axis=1)
        self._positions[touched] = np.take_along_axis(all_positions, order, axis=1)

    def hits(self, metric: Metric) -> tuple[Float32Array, IntArray]:
        """Return scores with their true sign, and positions."""
        scores = self._scores if metric.higher_is_better else -self._scores
        return np.where(self._positions >= 0, scores, np.float32(np.nan)), self._positions


def _excluded(positions: IntArray, exclude: IntArray | None) -> tuple[IntArray, IntArray]:
    """Return the pairs to leave out of a block, as queries and rows."""
    if exclude is None:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    row = np.minimum(np.searchsorted(positions, exclude), len(positions) - 1)
    query = np.flatnonzero(positions[row] == exclude)
    return query, row[query]


def _blocks(source: VectorParts, allowed: BoolArray | None, max_rows: int) -> Iterator[tuple[Float32Array, IntArray]]:
    """Yield the allowed vectors, some at a time, with their positions."""
    for batch in all_batches(source):
        vectors = checked(batch)
        positions = np.arange(batch.positions.start, batch.positions.stop)
        for start in range(0, len(vectors), max_rows):
            rows = slice(start, start + max_rows)
            block, here = vectors[rows], positions[rows]
            if allowed is not None:
                keep = allowed[here]
                block, here = block[keep], here[keep]
            if len(here):
                yield block, here


def _check_lengths(lengths: Float64Array, what: str, positions: IntArray) -> None:
    too_long = np.flatnonzero(lengths > _MAX_LENGTH)
    if len(too_long):
        where, length = positions[too_long[0]], lengths[too_long[0]]
        raise UserError(f"{what} {where} has length {length:.1e}, too large to compare in float32; scale vectors down")


def _check_arguments(
    n_queries: int, k: int, n_vectors: int, allowed: BoolArray | None, exclude: IntArray | None
) -> None:
    if k < 1:
        raise UserError(f"k is {k}: ask for 1 hit or more")
    if allowed is not None and (allowed.dtype != np.bool_ or allowed.shape != (n_vectors,)):
        raise UserError(f"allowed is {allowed.dtype} of shape {allowed.shape}: give bool of shape ({n_vectors},)")
    if exclude is not None and exclude.shape != (n_queries,):
        raise UserError(f"exclude has shape {exclude.shape}: give one position for each of {n_queries} queries")
