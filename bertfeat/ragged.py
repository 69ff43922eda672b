"""Index arithmetic on ragged arrays: runs of different lengths, laid end to end in one flat array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.records import BoolArray, IntArray


def starts_of(lengths: IntArray) -> IntArray:
    """Return the start of each run, and the total: int64 (n_runs + 1,)."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def ragged_arange(firsts: IntArray, lengths: IntArray) -> IntArray:
    """Return `first, first + 1, ...` for each run, end to end: int64 (sum of lengths,).

    Examples:
        >>> ragged_arange(np.array([10, 50]), np.array([3, 2])).tolist()
        [10, 11, 12, 50, 51]
    """
    total = int(lengths.sum())
    return np.arange(total, dtype=np.int64) + np.repeat(firsts - starts_of(lengths)[:-1], lengths)


def run_of(lengths: IntArray) -> IntArray:
    """Return the run that each flat entry belongs to: int64 (sum of lengths,)."""
    return np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)


def begins_run(*keys: npt.NDArray[Any]) -> BoolArray:
    """Return where a run of entries with equal keys begins, keys (n,): bool (n,)."""
    begins = np.zeros(len(keys[0]), dtype=np.bool_)
    begins[:1] = True
    for key in keys:
        begins[1:] |= key[1:] != key[:-1]
    return begins


def overlapping(
    start: IntArray, end: IntArray, other_starts: IntArray, other_ends: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the first of other stretches that overlaps each stretch, and the end of those that do: int64 (n,) each.

    The others ascend, and may overlap one another.
    """
    ends = np.maximum.accumulate(other_ends)
    starts = np.minimum.accumulate(other_starts[::-1])[::-1]
    first = np.searchsorted(ends, start, "right")
    return first, np.maximum(np.searchsorted(starts, end, "left"), first)


def word_bounds(words: Sequence[Sequence[str]]) -> tuple[IntArray, IntArray, IntArray]:
    """Return the number of words of each text, and each word's start and end in the text of words joined by spaces."""
    n_words = np.array([len(text) for text in words], dtype=np.int64)
    lengths = np.array([len(word) for text in words for word in text], dtype=np.int64)
    before = starts_of(lengths + 1)
    start = before[:-1] - np.repeat(before[starts_of(n_words)[:-1]], n_words)
    return n_words, start, start + lengths
