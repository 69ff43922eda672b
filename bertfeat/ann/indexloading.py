"""Opens an index folder for searching: faiss reads no byte before the digests have been checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss

from bertfeat.ann.description import DESCRIPTION, INDEX, IndexDescription
from bertfeat.ann.indexfolder import check_files, read_description, read_transform
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.errors import UserError
from bertfeat.nearest import Metric


def load_index(folder: str | Path, description: IndexDescription | None = None, *, mmap: bool = True) -> VectorIndex:
    """Open an index for searching.

    The digests of all files are compared with `index.json` before faiss reads anything. They show damage and mixed-up
    files, not who made them: build the index of somebody else's store again instead of loading theirs.

    Args:
        folder: The index.
        description: What `index.json` says, where that has been read already.
        mmap: Leave the vectors in the file until they are needed, and share them between processes. Such an index
            cannot be added to.

    Raises:
        UserError: It is no index, damaged, of a newer format, or not what its description says.

    Example:
        >>> load_index("index").search(vectors, k=10).positions  # doctest: +SKIP
    """
    folder = Path(folder)
    description = read_description(folder) if description is None else description
    check_files(folder, description)
    transform = read_transform(folder, description)
    index = read_faiss(folder, description, mmap=mmap)
    try:
        return VectorIndex(index, description.metric, transform, description.parameters)
    except UserError as error:
        raise UserError(f"{folder / INDEX}: {error}") from error


def read_faiss(folder: Path, description: IndexDescription, *, mmap: bool) -> Any:
    """Return the faiss index of a folder whose files have been checked.

    Raises:
        UserError: faiss cannot read it, or it is not what the description says.
    """
    path = folder / INDEX
    # This flag maps flat, inverted-file, graph and quantized indexes alike; IO_FLAG_MMAP knows inverted lists only.
    flags = faiss.IO_FLAG_MMAP_IFC if mmap else 0
    try:
        index = faiss.read_index(str(path.resolve()), flags)
    except (RuntimeError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: cannot be loaded: {reason[-300:]}; build the index again") from error
    found = (index.d, index.ntotal, index.metric_type)
    metric = faiss.METRIC_L2 if description.metric is Metric.L2 else faiss.METRIC_INNER_PRODUCT
    wanted = (description.index_dim, description.n_vectors, metric)
    if found != wanted:
        raise UserError(
            f"{path}: (dimensions, vectors, faiss metric) are {found}, not {wanted} as {DESCRIPTION} says; build the "
            "index again"
        )
    return index
