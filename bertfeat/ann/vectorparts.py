"""Sources of vectors for indexes: in parts, each read in batches, never all at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite
from bertfeat.records import BoolArray, Float32Array, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class VectorBatch:
    """Some vectors: `positions` are their places in the index, consecutive; `vectors` is float (n, dim)."""

    positions: range
    vectors: npt.NDArray[Any]


class VectorParts(Protocol):
    """Vectors (n_vectors, dim), float16 or float32, numbered by position, which can be read several times.

    `parts` are consecutive ranges of positions that cover all vectors.
    """

    n_vectors: int
    dim: int
    parts: Sequence[range]

    def batches(self, part: int) -> Iterator[VectorBatch]:
        """Yield the vectors of a part in order, some thousands per batch."""
        ...


class ArrayParts:
    """Vectors in memory, float (n_vectors, dim), cut into `n_parts` parts and batches of `batch_size`."""

    def __init__(self, vectors: npt.NDArray[Any], *, n_parts: int = 1, batch_size: int = 8192) -> None:
        self.vectors = vectors
        self.n_vectors, self.dim = vectors.shape
        borders = np.linspace(0, self.n_vectors, n_parts + 1).astype(int).tolist()
        self.parts: Sequence[range] = [range(a, b) for a, b in itertools.pairwise(borders)]
        self._batch_size = batch_size

    def batches(self, part: int) -> Iterator[VectorBatch]:
        """Yield the vectors of a part in order."""
        stop = self.parts[part].stop
        for start in range(self.parts[part].start, stop, self._batch_size):
            positions = range(start, min(start + self._batch_size, stop))
            yield VectorBatch(positions, self.vectors[positions.start : positions.stop])


def all_batches(source: VectorParts) -> Iterator[VectorBatch]:
    """Yield the vectors of all parts in order."""
    for part in range(len(source.parts)):
        yield from source.batches(part)


def checked(batch: VectorBatch) -> Float32Array:
    """Return a batch's vectors as contiguous float32 (n, dim); raise a UserError at NaN or infinity."""
    return _finite(batch.vectors, "vector", batch.positions.start, "which no index can order; extract the store again")


def checked_queries(queries: npt.NDArray[Any], dim: int) -> Float32Array:
    """Return queries as contiguous float32 (n_queries, dim); raise a UserError at another width, NaN or infinity."""
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise UserError(f"queries of shape {queries.shape}: the index takes (n_queries, {dim})")
    return _finite(queries, "query", 0, "which nothing compares with; encode it again")


def _finite(vectors: npt.NDArray[Any], what: str, first: int, remedy: str) -> Float32Array:
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    bad = first_not_finite(vectors)
    if bad is not None:
        raise UserError(f"{what} {first + bad} holds NaN or infinity, {remedy}")
    return vectors


def check_allowed(allowed: BoolArray | None, n_vectors: int) -> None:
    """Raise a UserError if a filter is neither bool (n_vectors,) nor None, which allows all."""
    if allowed is not None and (allowed.dtype != np.bool_ or allowed.shape != (n_vectors,)):
        raise UserError(f"allowed is {allowed.dtype} of shape {allowed.shape}: give bool of shape ({n_vectors},)")


def sample_positions(n_vectors: int, n_wanted: int, seed: int = 0) -> IntArray:
    """Return `n_wanted` random positions, or all if there are fewer, ascending; equal arguments give equal ones."""
    if n_wanted >= n_vectors:
        return np.arange(n_vectors, dtype=np.int64)
    chosen = np.random.default_rng(seed).choice(n_vectors, n_wanted, replace=False, shuffle=False)
    return np.sort(chosen).astype(np.int64)
