"""Growth of an index: further vectors are added to it in memory."""

from __future__ import annotations

from bertfeat.ann.indextraining import prepared_chunks
from bertfeat.ann.structure import is_mapped
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.errors import UserError
from bertfeat.vectors.array import Vectors


def extend(index: VectorIndex, source: Vectors, start: int = 0, n_chunk_rows: int = 8192) -> None:
    """Add vectors of a source, from position `start` on, to an index in memory, `n_chunk_rows` at once.

    What was learned stays: transform, centroids, code books, search parameters. A `Flat` index is then the same as one
    built from all vectors with the same transform. For others measure recall again (`tuning.tune`), because the new
    vectors may differ from the first.

    Raises:
        UserError: The vectors have another width, one holds NaN or infinity, or the index is mapped from a file.
    """
    n_vectors, dim = source.shape
    if dim != index.dim:
        raise UserError(f"the index takes vectors of {index.dim} dimensions, not {dim}; build another for these")
    if is_mapped(index.index):
        raise UserError(
            "the index is mapped from its file, which must not change; load it with mmap=False to add to it"
        )
    if start == n_vectors:
        return
    borders = [*range(start + n_chunk_rows, n_vectors, n_chunk_rows), n_vectors]
    for chunk in prepared_chunks(source, start, borders, index.transform, index.metric):
        index.index.add(chunk)
