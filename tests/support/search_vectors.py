"""Vectors to index: clustered as those of tokens are, and what brute force says of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bertfeat.ann.vectorparts import ArrayParts, VectorBatch
from bertfeat.nearest import Metric


def mixture(n: int, dim: int, *, n_clusters: int = 50, spread: float = 0.6, offset: float = 0.7, seed: int = 0):
    """Draw from a mixture of Gaussians with a common offset: float32 (n, dim)."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(n_clusters, dim))
    return (offset + centres[rng.integers(0, n_clusters, n)] + spread * rng.normal(size=(n, dim))).astype(np.float32)


def brute_force(vectors, queries, k, metric, *, transform=None, allowed=None):
    """Compare every pair in float64; of equal scores the lower position comes first."""
    if transform is not None:
        vectors, queries = transform.apply(vectors), transform.apply(queries)
    x, q = vectors.astype(np.float64), queries.astype(np.float64)
    if metric is Metric.L2:
        scores = np.sqrt(np.maximum(((q[:, None] - x[None]) ** 2).sum(-1), 0))
    else:
        scores = q @ x.T
        if metric is Metric.COSINE:
            lengths = np.linalg.norm(q, axis=1)[:, None] * np.linalg.norm(x, axis=1)
            scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)
    scores = scores.astype(np.float32)
    keys = scores if metric is Metric.L2 else -scores
    if allowed is not None:
        keys = np.where(allowed, keys, np.inf)
    positions = np.lexsort((np.broadcast_to(np.arange(len(x)), keys.shape), keys), axis=-1)[:, :k]
    return np.take_along_axis(scores, positions, axis=1), positions


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
