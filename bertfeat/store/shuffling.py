"""Shuffled batches of a level: blocks of rows in random order fill a buffer, whose rows are permuted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter

import numpy as np
import polars as pl

from bertfeat.records import IntArray
from bertfeat.store.offsets import split_rows
from bertfeat.store.part_reader import KeptGroups, opened
from bertfeat.store.selection import FeatureBatch, starts_of, take_columns
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

    starts = starts_of(parts)
    buffers = _buffers(starts, random(0), block_rows, buffer_rows)
    ends = np.cumsum([0, *(sum(map(len, blocks)) for blocks in buffers)], dtype=np.int64)
    dtype = parts[0].vectors.numpy
    # Used again and again: memory that is new to the process costs as much time as a copy.
    space = np.empty((int(np.diff(ends).max()), source.dim), dtype)

    def fill(number: int) -> tuple[IntArray, FeatureBatch]:
        """Return a buffer, with its vectors as they were read, and their order."""
        blocks, n_read = sorted(buffers[number], key=attrgetter("start")), 0
        for part, found in groupby(blocks, lambda block: int(starts.searchsorted(block.start, side="right")) - 1):
            first = int(starts[part])
            with opened(parts[part], kept) as file:
                for block in found:
                    target = space[n_read : n_read + len(block)]
                    file.read(source, range(block.start - first, block.stop - first), target)
                    n_read += len(block)
        order = random(number + 1).permutation(n_read)
        rows = np.concatenate([np.arange(block.start, block.stop) for block in blocks])[order]
        return order, FeatureBatch(rows, space, take_columns(parts, rows, names, kept))

    held: dict[int, tuple[IntArray, FeatureBatch]] = {}
    for first in batches:
        places = range(first, min(first + batches.step, batches.stop))
        rows, frames = np.empty(len(places), np.int64), list[pl.DataFrame]()
        vectors = np.empty((len(places), source.dim), dtype)
        for number, target, found in split_rows(places, ends):
            held = held if number in held else {number: fill(number)}
            order, buffer = held[number]
            chosen = slice(found.start, found.stop)
            rows[target] = buffer.rows[chosen]
            np.take(buffer.vectors, order[chosen], axis=0, out=vectors[target], mode="clip")
            if names:
                frames.append(buffer.columns[chosen])
        yield FeatureBatch(rows, vectors, pl.concat(frames) if names else pl.DataFrame(height=len(rows)))


def _buffers(starts: IntArray, random: np.random.Generator, block_rows: int, buffer_rows: int) -> list[list[range]]:
    """Return the blocks of each buffer, of parts that start at some rows."""
    parts = pairwise(starts.tolist())
    blocks = [range(at, min(stop, at + block_rows)) for first, stop in parts for at in range(first, stop, block_rows)]
    mixed = [blocks[number] for number in random.permutation(len(blocks))]
    ends = np.cumsum([len(block) for block in mixed], dtype=np.int64)
    cuts = np.flatnonzero(np.diff((ends - 1) // max(1, buffer_rows))) + 1
    return [mixed[first:stop] for first, stop in pairwise([0, *cuts.tolist(), len(mixed)])]
