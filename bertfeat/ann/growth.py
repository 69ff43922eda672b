"""Adds further vectors to an index that stands."""

from __future__ import annotations

from bertfeat.ann.indextraining import prepared_chunks
from bertfeat.ann.structure import is_mapped
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.ann.vectorparts import VectorParts
from bertfeat.errors import UserError


def extend(index: VectorIndex, source: VectorParts, n_chunk_rows: int = 8192) -> None:
    """Add the vectors of a source behind those that an index holds, in memory.

    What was learned stays: transform, centroids, code books, search parameters. A `Flat` index is then what building it
    from all vectors with the same transform gives; the others search further vectors as well as these resemble the
    first ones, so measure recall again (`tuning.tune`), and build anew where it has fallen.

    Args:
        index: The index, in memory.
        source: The further vectors, numbered from 0.
        n_chunk_rows: How many to add at once.

    Raises:
        UserError: The vectors have another width, one holds NaN or infinity, or the index is mapped from a file.
    """
    if source.dim != index.dim:
        raise UserError(f"the index takes vectors of {index.dim} dimensions, not {source.dim}; build another for these")
    if is_mapped(index.index):
        raise UserError("the index is mapped from its file, which stays as it is; load it with mmap=False to add to it")
    if not source.n_vectors:
        return
    borders = [*range(n_chunk_rows, source.n_vectors, n_chunk_rows), source.n_vectors]
    for chunk in prepared_chunks(source, 0, borders, index.transform, index.metric):
        index.index.add(chunk)
