"""Vectors to index: clustered as those of tokens are, and what brute force says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertfeat.ann.library import faiss
from bertfeat.vectors.nearest import Metric

# Tiny indexes are slower on several threads.
faiss.omp_set_num_threads(1)


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


class MadeVectors:
    """Many vectors that are made as they are read, and never are in memory together."""

    def __init__(self, n_vectors: int, dim: int, *, chunk_rows: int = 8192) -> None:
        self.shape = n_vectors, dim
        self.chunks: Sequence[range] = [
            range(start, min(start + chunk_rows, n_vectors)) for start in range(0, n_vectors, chunk_rows)
        ]
        self._base = mixture(chunk_rows, dim)

    def read(self, chunk: int) -> np.ndarray:
        rows = self.chunks[chunk]
        return np.roll(self._base, rows.start // 7, axis=0)[: len(rows)] + np.float32(rows.start / self.shape[0])
