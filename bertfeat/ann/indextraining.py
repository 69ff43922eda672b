"""Training of an index on a sample that is the same every time, and the vectors as an index takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import faiss
import numpy as np

from bertfeat.ann.budget import MemoryPlan
from bertfeat.ann.exact import sample_positions
from bertfeat.ann.structure import codes_of, leaves, transforms
from bertfeat.ann.transforms import Transform, prepare
from bertfeat.forks import limit_threads
from bertfeat.records import Float32Array, IntArray
from bertfeat.vectors.array import Vectors, chunks_of
from bertfeat.vectors.nearest import Metric

# The default of faiss, for seed 0.
_FAISS_SEED = 1234


@contextlib.contextmanager
def threads(n_threads: int) -> Iterator[None]:
    """Let faiss use this many threads within the block, or one in a forked process."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1 if limit_threads() else n_threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def trained(plan: MemoryPlan, source: Vectors, transform: Transform | None) -> Any:
    """Return the empty index, trained on a sample of the source."""
    index = plan.info.make()
    for part in leaves(index):
        _seed(part, plan.settings.seed)
    if plan.info.needs_training:
        positions = sample_positions(source.shape[0], plan.n_training, plan.settings.seed)
        with _seeded_rotations(index, plan.settings.seed):
            index.train(prepared_rows(source, positions, transform, plan.info.metric))
    return index


def prepared_rows(source: Vectors, positions: IntArray, transform: Transform | None, metric: Metric) -> Float32Array:
    """Return the vectors at some positions, ascending, as an index takes them; the source is read once."""
    dim = source.shape[1] if transform is None else transform.out_dim
    out = np.empty((len(positions), dim), dtype=np.float32)
    for rows, vectors in chunks_of(source):
        first, last = np.searchsorted(positions, [rows.start, rows.stop])
        if last > first:
            out[first:last] = prepare(vectors[positions[first:last] - rows.start], transform, metric)
    return out


def prepared_chunks(
    source: Vectors, start: int, borders: Sequence[int], transform: Transform | None, metric: Metric
) -> Iterator[Float32Array]:
    """Yield all vectors from a position on as an index takes them, cut at the borders and not as the source cuts them.

    Args:
        source: The vectors; chunks that end before `start` are not read.
        start: The first position.
        borders: The positions to cut at, ascending; the last one is the number of vectors.
        transform: The fitted transform.
        metric: How vectors are compared.

    Yields:
        float32 (n, dim), valid until the next chunk.
    """
    widest = max(b - a for a, b in zip([start, *borders], borders, strict=False))
    chunk = np.empty((widest, source.shape[1] if transform is None else transform.out_dim), dtype=np.float32)
    at, first, cuts = start, start, iter(borders)
    stop = next(cuts)
    for number, rows in enumerate(source.chunks):
        if rows.stop <= start:
            continue
        vectors = source.read(number)
        while at < rows.stop:
            until = min(stop, rows.stop)
            some = vectors[at - rows.start : until - rows.start]
            chunk[at - first : until - first] = prepare(some, transform, metric)
            at = until
            if at == stop:
                yield chunk[: at - first]
                first, stop = at, next(cuts, at)


@contextlib.contextmanager
def _seeded_rotations(index: Any, seed: int) -> Iterator[None]:
    """Seed the code books that an OPQ uses to learn its rotation, as `_seed` does for those of the index."""
    rotations = [found for found in transforms(index) if isinstance(found, faiss.OPQMatrix)]
    # The ones that faiss makes by default; faiss does not keep them alive.
    books = [faiss.ProductQuantizer(found.d_out, found.M, 8) for found in rotations]
    for rotation, book in zip(rotations, books, strict=True):
        _seed_clustering(book.cp, seed)
        rotation.pq = book
    try:
        yield
    finally:
        for rotation in rotations:
            rotation.pq = None


def _seed(part: Any, seed: int) -> None:
    """Seed the training of a part."""
    part = codes_of(part)
    settings = [part.cp] if isinstance(part, faiss.IndexIVF) else []
    if hasattr(part, "pq"):
        settings.append(part.pq.cp)
    for clustering in settings:
        _seed_clustering(clustering, seed)


def _seed_clustering(clustering: Any, seed: int) -> None:
    """Seed k-means, and keep it from warnings about small samples on stderr."""
    clustering.seed = (_FAISS_SEED + seed) % (1 << 31)
    clustering.min_points_per_centroid = 1
