"""Shuffled batches of a level: blocks of rows in random order fill buffers, whose rows are permuted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import polars as pl

from bertfeat.records import IntArray
from bertfeat.store.offsets import split_rows
from bertfeat.store.part_reader import KeptGroups
from bertfeat.store.selection import FeatureBatch, read_vectors, starts_of, take_columns
from bertfeat.store.vectors import StoredPart, VectorSource


def shuffled_batches(
    parts: Sequence[StoredPart],
    source: VectorSource,
    kept: KeptGroups,
    names: Sequence[str],
    batches: range,
    *,
    key: tuple[int, int],
    block_rows: int,
    buffer_rows: int,
) -> Iterator[FeatureBatch]:
    """Yield the batches at some places of the order that `key`, seed and epoch, decides; no earlier buffer is read."""

    def random(number: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(key[0], spawn_key=(key[1], number)))

    buffers = _buffers(starts_of(parts), random(0), block_rows, buffer_rows)
    lengths = [[len(block) for block in blocks] for blocks in buffers]
    ends = np.cumsum([0, *map(sum, lengths)], dtype=np.int64)
    dtype = parts[0].vectors.numpy
    # Used again and again: memory that is new to the process costs as much time as a copy.
    space = np.empty((2, int(np.diff(ends).max()), source.dim), dtype)

    def fill(number: int) -> tuple[IntArray, FeatureBatch]:
        """Return a buffer, with its vectors as they were read, and their order."""
        rows = np.concatenate([np.arange(block.start, block.stop) for block in buffers[number]])
        vectors = space[number % 2, : len(rows)]
        for block, target in zip(buffers[number], np.split(vectors, np.cumsum(lengths[number])[:-1]), strict=False):
            read_vectors(parts, block, source, kept, out=target)
        order = random(number + 1).permutation(len(rows))
        return order, FeatureBatch(rows[order], vectors, take_columns(parts, rows[order], names, kept))

    coming: dict[int, Future[tuple[IntArray, FeatureBatch]]] = {}
    with ThreadPoolExecutor(1) as pool:
        for first in batches:
            places = range(first, min(first + batches.step, batches.stop))
            rows, frames = np.empty(len(places), np.int64), list[pl.DataFrame]()
            vectors = np.empty((len(places), source.dim), dtype)
            for number, target, found in split_rows(places, ends):
                # While a buffer is used, the next one is read.
                ahead = range(number, min(number + 2, len(buffers)))
                coming = {one: coming.get(one) or pool.submit(fill, one) for one in ahead}
                order, buffer = coming[number].result()
                chosen = slice(found.start, found.stop)
                rows[target] = buffer.rows[chosen]
                np.take(buffer.vectors, order[chosen], axis=0, out=vectors[target], mode="clip")
                frames.append(buffer.columns[chosen])
            yield FeatureBatch(rows, vectors, pl.concat(frames))


def _buffers(starts: IntArray, random: np.random.Generator, block_rows: int, buffer_rows: int) -> list[list[range]]:
    """Return the blocks of each buffer, of parts that start at some rows."""
    parts = pairwise(starts.tolist())
    blocks = [range(at, min(stop, at + block_rows)) for first, stop in parts for at in range(first, stop, block_rows)]
    mixed = [blocks[number] for number in random.permutation(len(blocks))]
    ends = np.cumsum([len(block) for block in mixed], dtype=np.int64)
    cuts = np.flatnonzero(np.diff((ends - 1) // max(1, buffer_rows))) + 1
    return [mixed[first:stop] for first, stop in pairwise([0, *cuts.tolist(), len(mixed)])]
