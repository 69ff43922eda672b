"""Parts of a faiss index: transforms in front, a refinement around, and the part inside that finds vectors.

No function here keeps an index alive: it must outlive the parts that are taken from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

from bertfeat.records import Float32Array


def core(index: Any) -> Any:
    """Return the part of an index that finds vectors: its lists, its graph, or its codes."""
    index = faiss.downcast_index(index)
    while isinstance(index, faiss.IndexRefine | faiss.IndexPreTransform):
        index = faiss.downcast_index(index.base_index if isinstance(index, faiss.IndexRefine) else index.index)
    return index


def leaves(index: Any) -> Iterator[Any]:
    """Yield the parts of an index that hold vectors."""
    inner = _inner(index)
    for part in inner:
        yield from leaves(part)
    if not inner:
        yield faiss.downcast_index(index)


def codes_of(part: Any) -> Any:
    """Return what holds the codes of a leaf: of a graph its storage, else the leaf."""
    return faiss.downcast_index(part.storage) if isinstance(part, faiss.IndexHNSW) else part


def set_count(index: Any, n_vectors: int) -> None:
    """Set the number of vectors of an index and its parts, after the parts were filled one by one."""
    faiss.downcast_index(index).ntotal = n_vectors
    for part in _inner(index):
        set_count(part, n_vectors)


def is_mapped(index: Any) -> bool:
    """Return whether vectors of an index are in a mapped file; faiss ends the process when some are added to it."""
    return any(_is_part_mapped(part) for part in leaves(index))


def _is_part_mapped(part: Any) -> bool:
    if isinstance(part, faiss.IndexHNSW):
        return not part.hnsw.neighbors.is_owned
    if not isinstance(part, faiss.IndexIVF):
        return not getattr(part.codes, "is_owned", True)
    lists = faiss.downcast_InvertedLists(part.invlists)
    if isinstance(lists, faiss.ArrayInvertedLists):
        return any(not lists.codes.at(i).is_owned for i in range(lists.nlist))
    return not isinstance(lists, faiss.BlockInvertedLists)


def transforms(index: Any) -> list[Any]:
    """Return the transforms in front of an index, or of what is refined."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return transforms(index.base_index)
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    return [faiss.downcast_VectorTransform(index.chain.at(i)) for i in range(index.chain.size())]


def entered(index: Any, vectors: Float32Array) -> Float32Array:
    """Return vectors as the core of an index takes them, float32 (n, its dimensions)."""
    for transform in transforms(index):
        vectors = transform.apply(vectors)
    return vectors


def comparable(index: Any, vectors: Float32Array) -> tuple[Any, Float32Array] | None:
    """Return a part of an index that compares vectors one by one, a refinement or the storage of a graph.

    The vectors are returned as that part takes them. None if the index has no such part.
    """
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


def _inner(index: Any) -> list[Any]:
    """Return the indexes that an index wraps, the one that finds vectors first; none for a core."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return [index.base_index, index.refine_index]
    return [index.index] if isinstance(index, faiss.IndexPreTransform) else []
