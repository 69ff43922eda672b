"""Vectors to index: clustered as those of tokens are, and what brute force says of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bertfeat.ann.vectorparts import ArrayParts, VectorBatch
from bertfeat.vectors.nearest import Metric


def mixture(n: int, dim: int, *, n_clusters: int = 50, spread: float = 0.6, offset: float = 0.7, seed: int = 0):
    """Draw from a mixture of Gaussians with a common offset: float32 (n, dim)."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(n_clusters, dim))
    return (offset + centres[rng.integers(0, n_clusters, n)] + spread * rng.normal(size=(n, dim))).astype(np.float32)


def all_scores(vectors, queries, metric):
    """Compare every pair in float64: float32 (n_queries, n_vectors)."""
    x, q = vectors.astype(np.float64), queries.astype(np.float64)
    if metric is Metric.L2:
        scores = np.sqrt(np.array([np.square(x - query).sum(axis=1) for query in q]).reshape(len(q), len(x)))
    else:
        # Not by BLAS, which may round equal vectors otherwise.
        scores = np.einsum("qd,nd->qn", q, x)
    if metric is Metric.COSINE:
        lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(x, axis=1)
        scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)
    return scores.astype(np.float32)


def brute_force(vectors, queries, k, metric, *, transform=None, allowed=None, exclude=None):
    """Return the k best scores and positions, among equal scores the lower position first; NaN and -1 for no hit."""
    if transform is not None:
        vectors, queries = transform.apply(vectors), transform.apply(queries)
    scores, places = all_scores(vectors, queries, metric), np.arange(len(vectors))
    hidden = np.zeros(scores.shape, bool) if allowed is None else np.broadcast_to(~allowed, scores.shape)
    if exclude is not None:
        hidden = hidden | (places == exclude[:, None])
    keys = np.where(hidden, np.inf, -scores if metric.higher_is_better else scores)
    positions = np.lexsort((np.broadcast_to(places, keys.shape), keys), axis=-1)[:, :k]
    hits, n_missing = ~np.take_along_axis(hidden, positions, axis=1), max(0, k - len(vectors))
    found = np.where(hits, np.take_along_axis(scores, positions, axis=1), np.float32(np.nan))
    wide = ((0, 0), (0, n_missing))
    positions = np.pad(np.where(hits, positions, -1), wide, constant_values=-1)
    return np.pad(found, wide, constant_values=np.nan), positions


def recall(found, truth) -> float:
    """Return which part of the truth was found."""
    return float(np.mean([len(set(f) & set(t)) / len(t) for f, t in zip(found.tolist(), truth.tolist(), strict=True)]))


class MadeParts:
    """Many vectors that are made as they are read, and never are in memory together."""

    def __init__(self, n_vectors: int, dim: int, *, n_parts: int = 5, batch_size: int = 8192) -> None:
        self.n_vectors, self.dim = n_vectors, dim
        self.parts = ArrayParts(np.empty((n_vectors, 0), np.float32), n_parts=n_parts).parts
        self._base = mixture(batch_size, dim)

    def batches(self, part: int) -> Iterator[VectorBatch]:
        n_rows = len(self._base)
        for start in range(self.parts[part].start, self.parts[part].stop, n_rows):
            stop = min(start + n_rows, self.parts[part].stop)
            some = np.roll(self._base, start // 7, axis=0)[: stop - start] + np.float32(start / self.n_vectors)
            yield VectorBatch(range(start, stop), some)


class CountedParts(ArrayParts):
    """Vectors in memory that count how often a part is read."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.n_reads = 0

    def batches(self, part: int) -> Iterator[VectorBatch]:
        self.n_reads += 1
        return super().batches(part)
