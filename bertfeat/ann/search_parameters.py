"""Parts of a faiss index, which must outlive them, and its search parameters, named as in faiss's ParameterSpace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertfeat.ann.library import faiss
from bertfeat.records import BoolArray, Float32Array, IntArray

# The fewest vectors that a search of lists compares per hit: `nprobe` is tuned for 10 hits.
_CANDIDATES_EACH = 4
# The number of hits that parameters are tuned for.
K = 10
_MAX_BYTES = 32 << 20


def parts(index: Any) -> Iterator[Any]:
    """Yield an index and the indexes that it wraps, the one that finds vectors before its refinement."""
    index = faiss.downcast_index(index)
    yield index
    if isinstance(index, faiss.IndexRefine):
        yield from parts(index.base_index)
        yield from parts(index.refine_index)
    elif isinstance(index, faiss.IndexPreTransform):
        yield from parts(index.index)


def leaves(index: Any) -> Iterator[Any]:
    """Yield the parts of an index that hold vectors."""
    return (part for part in parts(index) if not isinstance(part, faiss.IndexRefine | faiss.IndexPreTransform))


def core(index: Any) -> Any:
    """Return the part of an index that finds vectors: its lists, its graph, or its codes."""
    return next(leaves(index))


def codes_of(part: Any) -> Any:
    """Return what holds the codes of a leaf: of a graph its storage, else the leaf."""
    return faiss.downcast_index(part.storage) if isinstance(part, faiss.IndexHNSW) else part


def transforms(index: Any) -> list[Any]:
    """Return the transforms in front of an index, or of what is refined."""
    chains = [part.chain for part in parts(index) if isinstance(part, faiss.IndexPreTransform)]
    return [faiss.downcast_VectorTransform(chain.at(i)) for chain in chains for i in range(chain.size())]


def entered(index: Any, vectors: Float32Array) -> Float32Array:
    """Return vectors as the core of an index takes them, float32 (n, its dimensions)."""
    for transform in transforms(index):
        vectors = transform.apply(vectors)
    return vectors


def comparable(index: Any, vectors: Float32Array) -> tuple[Any, Float32Array] | None:
    """Return the refinement or the storage of a graph, which compare vectors one by one, with the vectors they take."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return faiss.downcast_index(index.refine_index), vectors
    graph = core(index)
    if not isinstance(graph, faiss.IndexHNSW) or isinstance(graph, faiss.IndexHNSWPQ):
        return None
    return codes_of(graph), entered(index, vectors)


def stored_vectors(index: Any) -> Float32Array:
    """Return the vectors of a `Flat` index without copying them: float32 (n_vectors, dim)."""
    n_numbers = index.ntotal * index.d
    if not n_numbers:
        return np.empty((0, index.d), dtype=np.float32)
    flat: Float32Array = faiss.rev_swig_ptr(index.get_xb(), n_numbers).reshape(index.ntotal, index.d)
    return flat


def settable(index: Any) -> dict[str, int]:
    """Return the search parameters that an index has, each with the largest value that makes a difference."""
    index = faiss.downcast_index(index)
    found = {}
    if isinstance(index, faiss.IndexRefine):
        found["k_factor_rf"] = 1 << 20
    inner = core(index)
    if isinstance(inner, faiss.IndexIVF):
        found["nprobe"] = inner.nlist
        if isinstance(faiss.downcast_index(inner.quantizer), faiss.IndexHNSW):
            found["quantizer_efSearch"] = inner.nlist
    elif isinstance(inner, faiss.IndexHNSW):
        found["efSearch"] = max(inner.ntotal, 1 << 20)
    return found


def widened(index: Any, values: Mapping[str, float], k: int, n_allowed: int) -> dict[str, float]:
    """Return search parameters that find as much under a filter, or for a larger k, as the given ones do for ten."""
    inner, wide = core(index), dict(values)
    if isinstance(inner, faiss.IndexIVF):
        wide["nprobe"] = min(inner.nlist, math.ceil(n_compared(index, values, k) * inner.nlist / n_allowed))
    elif isinstance(inner, faiss.IndexHNSW):
        # faiss itself takes k steps or more.
        n_steps = wide.get("efSearch", inner.hnsw.efSearch) * inner.ntotal / n_allowed
        wide["efSearch"] = min(inner.ntotal, math.ceil(n_steps))
    return wide


def n_compared(index: Any, values: Mapping[str, float], k: int) -> float:
    """Return how many vectors a search of lists for k hits compares, without a filter."""
    inner = core(index)
    each = inner.ntotal / inner.nlist
    return float(max(values.get("nprobe", inner.nprobe) * each, _CANDIDATES_EACH * k))


def n_candidates(index: Any, values: Mapping[str, float], k: int) -> int:
    """Return how many vectors a search for k hits compares a second time, to reorder them; k without a refinement."""
    index = faiss.downcast_index(index)
    if not isinstance(index, faiss.IndexRefine):
        return k
    factor: float = values.get("k_factor_rf", index.k_factor)
    # For fewer hits than it is tuned for, it compares as many: the nearest are missed no more often than others.
    return max(k, min(int(index.ntotal), math.ceil(factor * max(k, K))))


def is_scan_cheaper(index: Any, values: Mapping[str, float], n_allowed: int) -> bool:
    """Return whether comparing all allowed vectors costs a graph less than following links past the others."""
    inner = core(index)
    if not isinstance(inner, faiss.IndexHNSW):
        return False
    n_steps = values.get("efSearch", inner.hnsw.efSearch) * inner.ntotal / n_allowed
    return bool(n_allowed <= n_steps * inner.hnsw.nb_neighbors(0))


def search_parameters(index: Any, values: Mapping[str, float], selector: Any = None, k: int = K) -> Any:
    """Return the object of faiss for a search among the selected vectors, or None; the index has defaults."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        factor = n_candidates(index, values, k) / k
        inner = search_parameters(index.base_index, values, selector)
        return faiss.IndexRefineSearchParameters(k_factor=float(factor), base_index_params=inner)
    if isinstance(index, faiss.IndexPreTransform):
        inner = search_parameters(index.index, values, selector)
        return None if inner is None else faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexHNSW):
        n_steps = int(values.get("efSearch", index.hnsw.efSearch))
        return faiss.SearchParametersHNSW(efSearch=n_steps, sel=selector)
    if not isinstance(index, faiss.IndexIVF):
        return None if selector is None else faiss.SearchParameters(sel=selector)
    n_probes = int(values.get("nprobe", index.nprobe))
    params = faiss.SearchParametersIVF(nprobe=n_probes, max_codes=index.max_codes, sel=selector)
    quantizer = faiss.downcast_index(index.quantizer)
    if isinstance(quantizer, faiss.IndexHNSW):
        n_steps = int(values.get("quantizer_efSearch", quantizer.hnsw.efSearch))
        # With fewer steps than wanted lists, the graph would give fewer lists.
        params.quantizer_params = faiss.SearchParametersHNSW(efSearch=max(n_steps, n_probes))
    return params


def has_ordered_lists(index: Any) -> bool:
    """Return whether an index has lists that it ranks completely for each query; a graph finds only the nearest."""
    inner = core(index)
    return isinstance(inner, faiss.IndexIVF) and isinstance(faiss.downcast_index(inner.quantizer), faiss.IndexFlat)


def lists_needed(index: Any, queries: Float32Array, allowed: BoolArray, n_wanted: float) -> IntArray:
    """Return how many nearest lists, as a power of two, hold `n_wanted` allowed vectors, int64 (n_queries,)."""
    inner, queries = core(index), entered(index, queries)
    counts = np.zeros(inner.nlist, np.int64)
    for number in range(inner.nlist):
        if n_vectors := inner.invlists.list_size(number):
            ids = faiss.rev_swig_ptr(inner.invlists.get_ids(number), n_vectors)
            counts[number] = np.count_nonzero(allowed[ids])
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
    return np.asarray(np.minimum(rounded, inner.nlist))
