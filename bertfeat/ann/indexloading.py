"""Loader of an index folder: faiss reads no byte before the digests are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss

from bertfeat.ann.description import INDEX, IndexDescription
from bertfeat.ann.indexfolder import BUILD_AGAIN, check_files, read_description, read_transform
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.errors import UserError


def load_index(folder: str | Path, description: IndexDescription | None = None, *, mmap: bool = True) -> VectorIndex:
    """Open an index for searching.

    The digests of all files are compared with `index.json` before faiss reads anything. They show damage and mixed-up
    files, but not who wrote them: build an index again from its store where you do not trust its author.

    Args:
        folder: The index.
        description: The content of `index.json`, if it has been read already.
        mmap: Leave the vectors in the file until they are needed, and share them between processes; faiss copies codes
            of 4 bits (`x4fs`) into memory all the same. Such an index cannot be added to.

    Raises:
        UserError: The folder is not an index, is damaged, or has a newer format.

    Examples:
        >>> load_index("index").search(vectors, k=10).positions  # doctest: +SKIP
    """
    folder = Path(folder)
    description = read_description(folder) if description is None else description
    check_files(folder, description)
    index = read_faiss(folder, mmap=mmap)
    return VectorIndex(index, description.metric, read_transform(folder, description), description.parameters)


def read_faiss(folder: Path, *, mmap: bool) -> Any:
    """Return the faiss index of a folder whose files have been checked.

    Raises:
        UserError: faiss cannot read the index, as one that a newer faiss wrote.
    """
    path = folder / INDEX
    # This flag maps flat, inverted-file, graph and quantized indexes alike; IO_FLAG_MMAP knows inverted lists only.
    flags = faiss.IO_FLAG_MMAP_IFC if mmap else 0
    try:
        return faiss.read_index(str(path.resolve()), flags)
    except (RuntimeError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: cannot be loaded: {reason[-300:]}; {BUILD_AGAIN}") from error
