"""Minibatches for neural heads, of sequences or of rows as sequences of one; a stream is read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

import numpy as np
import torch

from bertfeat.errors import UserError
from bertfeat.heads.sequences import Sequences
from bertfeat.ragged import ragged_arange
from bertfeat.records import BoolArray, IntArray
from bertfeat.vectors.array import ArrayVectors, FloatArray, Vectors

# Chunks of a stream that training batches are drawn from at once.
_POOL_CHUNKS = 3
# Chunks that are read ahead of the one in use.
_CHUNKS_AHEAD = 2
# Sequences are sorted by length within this many batches. With fewer, lengths in a batch would differ more; with more,
# the same sequences would be together in every epoch.
_SORTED_BATCHES = 50
# Limits of a batch when nothing is learned: rows, and values (32 MB of float32).
_MAX_EVAL_ROWS = 4096
_MAX_EVAL_VALUES = 8 << 20
# The most values that are held out of training: 32 MB of float32.
_MAX_HELD_OUT_VALUES = 8 << 20

# Chunks in memory, in order: the first row and the vectors of each.
_Pool = list[tuple[int, FloatArray]]


@dataclass(frozen=True)
class BatchSize:
    """Limits of a batch; a sequence longer than `max_rows` is a batch alone."""

    max_sequences: int
    max_rows: int

    @classmethod
    def for_evaluation(cls, dim: int) -> BatchSize:
        """Return the limits where nothing is learned."""
        n_rows = max(1, min(_MAX_EVAL_ROWS, _MAX_EVAL_VALUES // max(1, dim)))
        return cls(n_rows, n_rows)


@dataclass(frozen=True, eq=False)
class Batch:
    """Some sequences, end to end: float32 (n_rows, dim), the numbers of their rows, ascending, and lengths above 0."""

    vectors: torch.Tensor
    rows: IntArray
    lengths: IntArray


def batches(
    data: Sequences, size: BatchSize, rng: np.random.Generator | None = None, taking_part: BoolArray | None = None
) -> Iterator[Batch]:
    """Yield every sequence, or those `taking_part`, bool (n_sequences,), once, in the order that `rng` draws."""
    n_chunks = 1 if isinstance(data.vectors, ArrayVectors) else len(data.vectors.chunks)
    order = np.arange(n_chunks) if rng is None else rng.permutation(n_chunks)
    for pool in _pools(data, order, 1 if rng is None else _POOL_CHUNKS):
        chosen = np.concatenate([_sequences_of(data, first, first + len(array)) for first, array in pool])
        if taking_part is not None:
            chosen = chosen[taking_part[chosen]]
        cut = _cut(chosen if rng is None else rng.permutation(chosen), data.lengths, size)
        for i in range(len(cut)) if rng is None else rng.permutation(len(cut)).tolist():
            yield _batch(data, pool, cut[i])
        del pool  # before the next one is read


def hold_out(
    data: Sequences, share: float, rng: np.random.Generator, classes: IntArray | None
) -> tuple[Sequences, IntArray, BoolArray]:
    """Hold a share of the sequences, or of each of the `classes` (n_sequences,), out of training; up to 32 MB.

    Return them, the numbers of their rows, ascending, and which sequences are left, bool (n_sequences,).
    """
    candidates = np.flatnonzero(data.lengths > 0)
    n = len(candidates)
    if n < 2:
        raise UserError("early stopping holds out part of X, which has one sequence alone; pass dev=(X_dev, y_dev)")
    order = rng.permutation(candidates)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
    n_values = max(1, data.vectors.shape[0] * data.dim)
    n_held = max(1, min(n - 1, int(min(share, _MAX_HELD_OUT_VALUES / n_values) * n)))
    # Evenly spaced in the order, so each class gives its share.
    held = np.sort(order[((np.arange(n_held) + rng.random()) * n / n_held).astype(np.int64)])
    is_left = np.ones(len(data), dtype=np.bool_)
    is_left[held] = False
    rows = _rows_of(data, held)
    vectors = np.empty((len(rows), data.dim), np.float32)
    for batch in batches(data, BatchSize.for_evaluation(data.dim), taking_part=~is_left):
        vectors[np.searchsorted(rows, batch.rows)] = batch.vectors.numpy()
    return Sequences(vectors, data.lengths[held]), rows, is_left


def _batch(data: Sequences, pool: _Pool, sequences: IntArray) -> Batch:
    """Return a batch of sequences, whose numbers are ascending."""
    rows = _rows_of(data, sequences)
    cuts = [*np.searchsorted(rows, [first for first, _ in pool]).tolist(), len(rows)]
    parts = [
        np.take(array, rows[start:stop] - first, axis=0)
        for (first, array), start, stop in zip(pool, cuts, cuts[1:], strict=False)
        if stop > start
    ]
    vectors = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return Batch(torch.from_numpy(vectors).float(), rows, data.lengths[sequences])


def _pools(data: Sequences, order: IntArray, n_chunks: int) -> Iterator[_Pool]:
    """Yield a few chunks at a time; which ones follows from an order of all chunks."""
    chunks = _read_ahead(data.vectors, order.tolist())
    while pool := list(islice(chunks, n_chunks)):
        yield sorted(pool, key=itemgetter(0))
        del pool


def _read_ahead(vectors: Vectors, order: Sequence[int]) -> Iterator[tuple[int, FloatArray]]:
    """Yield the first row and the vectors of chunks, in an order; vectors in memory are one chunk."""
    if isinstance(vectors, ArrayVectors):
        yield 0, vectors.whole()
        return
    waiting: deque[tuple[int, Future[FloatArray]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="bertfeat-chunks") as thread:
        for chunk in order:
            waiting.append((vectors.chunks[chunk].start, thread.submit(vectors.read, chunk)))
            if len(waiting) > _CHUNKS_AHEAD:
                yield waiting[0][0], waiting.popleft()[1].result()
        while waiting:
            yield waiting[0][0], waiting.popleft()[1].result()


def _sequences_of(data: Sequences, start: int, stop: int) -> IntArray:
    """Return the numbers of the sequences that have rows, in a range of rows."""
    first, last = np.searchsorted(data.starts[:-1], [start, stop]).tolist()
    if data.starts[last] != stop or data.starts[first] != start:
        raise UserError(f"the chunk of rows {start} to {stop} ends inside a sequence; its borders must not")
    numbers = np.arange(first, last, dtype=np.int64)
    return numbers[data.lengths[first:last] > 0]


def _rows_of(data: Sequences, sequences: IntArray) -> IntArray:
    return ragged_arange(data.starts[sequences], data.lengths[sequences])


def _cut(sequences: IntArray, lengths: IntArray, size: BatchSize) -> list[IntArray]:
    """Return batches of sequences of similar length: the sequences' numbers, ascending in each batch."""
    batches = []
    window = _SORTED_BATCHES * size.max_sequences
    for start in range(0, len(sequences), window):
        part = sequences[start : start + window]
        part = part[np.argsort(-lengths[part], kind="stable")]
        # Batches of even size: a tiny last batch would weigh as much as a full one.
        most = -(-len(part) // -(-len(part) // size.max_sequences))
        at = 0
        while at < len(part):
            n = max(1, min(most, size.max_rows // int(lengths[part[at]])))
            batches.append(np.sort(part[at : at + n]))
            at += n
    return batches
