"""What a faiss index is made of: transforms in front, a refinement around, and the part that finds vectors inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

from bertfeat.records import Float32Array


def core(index: Any) -> Any:
    """Return the part of an index that finds vectors: its lists, its graph, or its codes. `index` must outlive it."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return core(index.base_index)
    return core(index.index) if isinstance(index, faiss.IndexPreTransform) else index


def leaves(index: Any) -> Iterator[Any]:
    """Yield the parts of an index that hold vectors. `index` must outlive them."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        yield from leaves(index.base_index)
        yield from leaves(index.refine_index)
    elif isinstance(index, faiss.IndexPreTransform):
        yield from leaves(index.index)
    else:
        yield index


def set_count(index: Any, n_vectors: int) -> None:
    """Tell an index and its parts, which were filled from below, how many vectors they hold."""
    index = faiss.downcast_index(index)
    index.ntotal = n_vectors
    if isinstance(index, faiss.IndexRefine):
        set_count(index.base_index, n_vectors)
        set_count(index.refine_index, n_vectors)
    elif isinstance(index, faiss.IndexPreTransform):
        set_count(index.index, n_vectors)


def is_mapped(index: Any) -> bool:
    """Tell whether vectors of an index lie in a file, where faiss, asked to add some, would end the process."""
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
    """Return the transforms in front of an index, or of what is refined. `index` must outlive them."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return transforms(index.base_index)
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    return [faiss.downcast_VectorTransform(index.chain.at(i)) for i in range(index.chain.size())]


def entered(index: Any, vectors: Float32Array) -> Float32Array:
    """Return vectors as the part of an index that finds vectors takes them, float32 (n, its dimensions)."""
    for transform in transforms(index):
        vectors = transform.apply(vectors)
    return vectors


def comparable(index: Any, vectors: Float32Array) -> tuple[Any, Float32Array] | None:
    """Return a part of a graph index that compares vectors one by one, under a filter too, and the vectors as it takes
    them; None if there is no such part.
    """
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexRefine):
        return faiss.downcast_index(index.refine_index), vectors
    if isinstance(index, faiss.IndexPreTransform):
        return comparable(index.index, entered(index, vectors))
    if not isinstance(index, faiss.IndexHNSW) or isinstance(index, faiss.IndexHNSWPQ):
        return None
    return faiss.downcast_index(index.storage), vectors


def stored_vectors(index: Any) -> Float32Array:
    """Return the vectors of a `Flat` index where they lie: float32 (n_vectors, dim). `index` must outlive them."""
    n_numbers = index.ntotal * index.d
    if not n_numbers:
        return np.empty((0, index.d), dtype=np.float32)
    flat: Float32Array = faiss.rev_swig_ptr(index.get_xb(), n_numbers).reshape(index.ntotal, index.d)
    return flat
