"""Exact search of vectors, the truth that indexes are measured against."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bertfeat.ann.transforms import Transform, prepare
from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite
from bertfeat.records import BoolArray, Float32Array, IntArray
from bertfeat.vectors.array import Vectors, chunks_of
from bertfeat.vectors.nearest import Metric, nearest, signed_scores

# The working memory of an exact search.
EXACT_BYTES = 256 << 20

# Scores and positions, (n_queries, k) each.
Found: TypeAlias = tuple[Float32Array, IntArray]


def exact_search(
    source: Vectors,
    queries: npt.NDArray[Any],
    k: int,
    metric: Metric,
    transform: Transform | None = None,
    *,
    allowed: BoolArray | None = None,
    exclude: IntArray | None = None,
    max_bytes: int = EXACT_BYTES,
) -> Found:
    """Return the `nearest` `allowed` vectors of raw queries (n_queries, dim) in a raw source, which is read once."""
    queries = checked_queries(queries, source.shape[1])
    check_request(k, allowed, source.shape[0])
    as_compared = functools.partial(prepare, transform=transform, metric=Metric.IP)
    batches, asked = _batches(source, allowed), as_compared(queries)
    return nearest(batches, asked, k, metric, prepare=as_compared, exclude=exclude, max_bytes=max_bytes)


def exact_scores(
    source: Vectors, queries: npt.NDArray[Any], positions: IntArray, metric: Metric, transform: Transform | None = None
) -> Float32Array:
    """Return the `exact_search` scores of queries with `positions`, (n_queries, k) each; NaN for -1, none."""
    asked = prepare(checked_queries(queries, source.shape[1]), transform, Metric.IP)
    out = np.full(positions.size, np.nan, dtype=np.float32)
    order = np.argsort(positions, axis=None, kind="stable")
    ordered = positions.ravel()[order]
    wanted = np.zeros(source.shape[0], dtype=bool)
    wanted[ordered[ordered >= 0]] = True
    for vectors, found in _batches(source, wanted):
        here = slice(*np.searchsorted(ordered, [found[0], found[-1] + 1]))
        query, row = order[here] // positions.shape[1], np.searchsorted(found, ordered[here])
        prepared = prepare(vectors, transform, Metric.IP)
        scores = signed_scores(asked, prepared, query, row, metric, max_bytes=EXACT_BYTES)
        out[order[here]] = scores if metric.higher_is_better else -scores
    return out.reshape(positions.shape)


def _batches(source: Vectors, allowed: BoolArray | None) -> Iterator[tuple[npt.NDArray[Any], IntArray]]:
    """Yield the allowed vectors of each chunk with their positions."""
    for rows, vectors in chunks_of(source):
        positions = np.arange(rows.start, rows.stop)
        if allowed is not None:
            keep = allowed[positions]
            vectors, positions = vectors[keep], positions[keep]
        if len(positions):
            yield vectors, positions


def checked_queries(queries: npt.NDArray[Any], dim: int) -> Float32Array:
    """Return queries as contiguous float32 (n_queries, dim); raise a UserError at another width, NaN or infinity."""
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise UserError(f"queries of shape {queries.shape}: the index takes (n_queries, {dim})")
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    bad = first_not_finite(queries)
    if bad is not None:
        raise UserError(f"query {bad} holds NaN or infinity, which nothing compares with; encode it again")
    return queries


def check_request(k: int, allowed: BoolArray | None, n_vectors: int) -> None:
    """Raise a UserError if k is below 1, or a filter is neither bool (n_vectors,) nor None, which allows all."""
    if k < 1:
        raise UserError(f"k is {k}: ask for 1 hit or more")
    if allowed is not None and (allowed.dtype != np.bool_ or allowed.shape != (n_vectors,)):
        raise UserError(f"allowed is {allowed.dtype} of shape {allowed.shape}: give bool of shape ({n_vectors},)")


def sample_positions(n_vectors: int, n_wanted: int, seed: int = 0) -> IntArray:
    """Return `n_wanted` random positions, or all if there are fewer, ascending; equal arguments give equal ones."""
    if n_wanted >= n_vectors:
        return np.arange(n_vectors, dtype=np.int64)
    chosen = np.random.default_rng(seed).choice(n_vectors, n_wanted, replace=False, shuffle=False)
    return np.sort(chosen).astype(np.int64)
