"""How many lists a search among some of the vectors has to look into, for each query.

A search without a filter looks into as many lists as were found to be enough. What a filter lets through may lie in
other lists than those that are closest to a query: of the words of another topic, none does. So lists are counted, from
the closest on, until they hold as many vectors that may be found as the search without a filter looks at.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from bertfeat.ann.structure import core, entered, stored_vectors
from bertfeat.records import BoolArray, Float32Array, IntArray

_MAX_BYTES = 32 << 20


def has_ordered_lists(index: Any) -> bool:
    """Tell whether vectors lie in lists that are put in order for each query; a graph finds only the closest lists."""
    inner = core(index)
    return isinstance(inner, faiss.IndexIVF) and isinstance(faiss.downcast_index(inner.quantizer), faiss.IndexFlat)


def lists_needed(index: Any, queries: Float32Array, allowed: BoolArray, n_wanted: float) -> IntArray:
    """Return how many lists, from the closest on, hold so many vectors that may be found; all where all hold fewer.

    Args:
        index: An index that `has_ordered_lists`.
        queries: float32 (n_queries, dim), as the index takes them.
        allowed: bool (n_vectors,), which may be found.
        n_wanted: How many vectors to look at.

    Returns:
        int64 (n_queries,), rounded up to a power of two, so that many queries share a number.
    """
    inner, queries = core(index), entered(index, queries)
    counts = _allowed_in_lists(inner, allowed)
    centroids = stored_vectors(faiss.downcast_index(inner.quantizer))
    needed = np.empty(len(queries), np.int64)
    step = max(1, _MAX_BYTES // (28 * inner.nlist))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        keys = queries[rows] @ centroids.T
        if inner.metric_type == faiss.METRIC_L2:
            keys -= np.square(centroids).sum(axis=1) / 2
        order = np.argsort(-keys, axis=1)
        needed[rows] = 1 + (np.cumsum(counts[order], axis=1) < n_wanted).sum(axis=1)
    rounded: IntArray = np.int64(1) << np.ceil(np.log2(needed)).astype(np.int64)
    few: IntArray = np.minimum(rounded, inner.nlist)
    return few


def _allowed_in_lists(inner: Any, allowed: BoolArray) -> IntArray:
    """Return how many vectors that may be found each list holds, int64 (n_lists,)."""
    lists = inner.invlists
    counts = np.zeros(inner.nlist, np.int64)
    for number in range(inner.nlist):
        if n_vectors := lists.list_size(number):
            ids = faiss.rev_swig_ptr(lists.get_ids(number), n_vectors)
            counts[number] = np.count_nonzero(allowed[ids])
    return counts
