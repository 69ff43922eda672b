"""Exact search of vectors in parts, the truth that indexes are measured against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.ann.transforms import Transform, prepare
from bertfeat.ann.vectorparts import VectorParts, all_batches, check_allowed, checked, checked_queries
from bertfeat.errors import UserError
from bertfeat.records import BoolArray, Float32Array, IntArray
from bertfeat.vectors.nearest import Metric, nearest, signed_scores

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
    """Find the k nearest vectors of each query by comparing all; the source is read once.

    Scores are computed in float64 from the transformed float32 vectors and rounded once. Among equal scores the lower
    position wins.

    Args:
        source: The vectors, raw.
        queries: float (n_queries, dim), raw.
        k: The number of hits.
        metric: How vectors are compared.
        transform: What is done to both sides first.
        allowed: bool (n_vectors,), which vectors may be found; None for all.
        exclude: int64 (n_queries,), a position that each query must not find, such as its own; -1 for none.
        max_bytes: Working memory, besides queries, hits, and the source's own batches.

    Returns:
        The scores, float32 (n_queries, k), best first, NaN where there are fewer hits; and their positions, int64
        (n_queries, k), -1 where there are fewer.

    Raises:
        UserError: k is below 1, an array has another shape than these, or a vector holds NaN, infinity, or numbers too
            large to compare in float32.
    """
    queries = checked_queries(queries, source.dim)
    if k < 1:
        raise UserError(f"k is {k}: ask for 1 hit or more")
    check_allowed(allowed, source.n_vectors)
    if exclude is not None and exclude.shape != (len(queries),):
        raise UserError(f"exclude has shape {exclude.shape}: give one position for each of {len(queries)} queries")
    return nearest(
        _batches(source, allowed),
        prepare(queries, transform, Metric.IP),
        k,
        metric,
        prepare=lambda vectors: prepare(vectors, transform, Metric.IP),
        exclude=exclude,
        max_bytes=max_bytes,
    )


def exact_scores(
    source: VectorParts,
    queries: npt.NDArray[Any],
    positions: IntArray,
    metric: Metric,
    transform: Transform | None = None,
) -> Float32Array:
    """Return the scores of given pairs, as `exact_search` computes them; the source is read once.

    They are equal to the bit, except that a transform with a matrix may round the last bit of a vector otherwise
    (`Transform.apply`).

    Args:
        source: As for `exact_search`.
        queries: As for `exact_search`.
        positions: int64 (n_queries, k), the vectors to compare each query with; -1 for none.
        metric: As for `exact_search`.
        transform: As for `exact_search`.

    Returns:
        float32 (n_queries, k), NaN where the position is -1.

    Raises:
        UserError: A query or a vector cannot be compared.
    """
    asked = prepare(checked_queries(queries, source.dim), transform, Metric.IP)
    out = np.full(positions.size, np.nan, dtype=np.float32)
    order = np.argsort(positions, axis=None, kind="stable")
    ordered = positions.ravel()[order]
    wanted = np.zeros(source.n_vectors, dtype=bool)
    wanted[ordered[ordered >= 0]] = True
    for vectors, found in _batches(source, wanted):
        here = slice(*np.searchsorted(ordered, [found[0], found[-1] + 1]))
        query, row = order[here] // positions.shape[1], np.searchsorted(found, ordered[here])
        prepared = prepare(vectors, transform, Metric.IP)
        scores = signed_scores(asked, prepared, query, row, metric, max_bytes=_DEFAULT_BYTES)
        out[order[here]] = scores if metric.higher_is_better else -scores
    return out.reshape(positions.shape)


def _batches(source: VectorParts, allowed: BoolArray | None) -> Iterator[tuple[Float32Array, IntArray]]:
    """Yield batches of the allowed vectors with their positions."""
    for batch in all_batches(source):
        vectors, positions = checked(batch), np.arange(batch.positions.start, batch.positions.stop)
        if allowed is not None:
            keep = allowed[positions]
            vectors, positions = vectors[keep], positions[keep]
        if len(positions):
            yield vectors, positions
