"""The vectors of a store as a stream: read chunk by chunk, as often as a fit passes over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite
from bertfeat.heads.matrices import FloatArray
from bertfeat.records import IntArray
from bertfeat.store.reader import Store

#: Vectors of a chunk as float32: what a step of streamed work holds.
CHUNK_BYTES = 64_000_000
FLOAT32_BYTES = 4


class StoreStream:
    """The vectors of a level and feature, read from the store chunk by chunk: a `VectorStream`.

    Args:
        store: The store.
        level: The level.
        feature: A feature of it, stored or made from what is stored.
        rows: int64, ascending: the rows of the level that take part; None for all.
        documents: int64 (n_rows,), ascending: the document of each row; no chunk ends inside one. None where each row
            is a document of its own.
        chunk_bytes: How much of float32 vectors a chunk holds, or one document where that is more.

    Attributes:
        shape: (n_rows, dim).
        chunks: The ranges of rows that are read at a time.
    """

    def __init__(
        self,
        store: Store,
        level: str,
        feature: str,
        *,
        rows: IntArray | None = None,
        documents: IntArray | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.store = store
        self.level = level
        self.feature = feature
        self.rows = np.arange(store.n_rows(level), dtype=np.int64) if rows is None else rows
        dim = store.feature(level, feature).dim
        self.shape = (len(self.rows), dim)
        self.chunks: Sequence[range] = _cut(len(self.rows), documents, max(1, chunk_bytes // (FLOAT32_BYTES * dim)))

    def read(self, chunk: int) -> FloatArray:
        """Return the vectors of a chunk, (rows of the chunk, dim), of the stored type.

        Raises:
            UserError: One holds NaN or infinity; the message names the row and its document.
            StoreError: A part is missing or damaged.
        """
        span = self.chunks[chunk]
        rows = self.rows[span.start : span.stop]
        found = self.store.take(self.level, self.feature, rows)
        check_finite(found, self, span.start)
        return found

    def whole(self) -> FloatArray:
        """Return the vectors of all rows in memory, (n_rows, dim), of the stored type.

        Raises:
            UserError: One holds NaN or infinity; the message names the row and its document.
            StoreError: A part is missing or damaged.
        """
        if len(self.rows) == self.store.n_rows(self.level):
            vectors = self.store.numpy(self.level, self.feature)
            check_finite(vectors, self, 0)
            return vectors
        pieces = [self.read(chunk) for chunk in range(len(self.chunks))]
        return np.concatenate(pieces) if pieces else self.store.slice(self.level, self.feature, 0, 0)


def check_finite(vectors: FloatArray, stream: StoreStream, start: int) -> None:
    """Refuse vectors, the rows of a stream from `start` on, that hold NaN or infinity.

    Raises:
        UserError: One does; the message names its row and document.
    """
    bad = first_not_finite(vectors)
    if bad is not None:
        store, row = stream.store, int(stream.rows[start + bad])
        doc_id = store.rows(stream.level, [row], ["doc_id"])["doc_id"][0]
        raise UserError(
            f"{store.path}: {stream.feature} of {stream.level} row {row} (document {doc_id!r}) holds NaN or infinity; "
            "run bertfeat verify, and extract the store again"
        )


def lengths_of(documents: IntArray) -> IntArray:
    """Return the rows of each document that has any, (n_documents,), of ascending document numbers (n_rows,)."""
    return np.diff(_borders(documents)).astype(np.int64)


def _borders(documents: IntArray) -> IntArray:
    """Return where each document starts, and the number of rows at the end."""
    starts = np.flatnonzero(np.diff(documents, prepend=-1))
    return np.append(starts, len(documents)).astype(np.int64)


def _cut(n_rows: int, documents: IntArray | None, max_rows: int) -> list[range]:
    """Cut rows into ranges of at most `max_rows`, or one document where that has more."""
    borders = None if documents is None else _borders(documents)
    chunks, start = [], 0
    while start < n_rows:
        stop = min(start + max_rows, n_rows)
        if borders is not None and stop < n_rows:
            place = int(np.searchsorted(borders, stop, side="right")) - 1
            stop = int(borders[place] if borders[place] > start else borders[place + 1])
        chunks.append(range(start, stop))
        start = stop
    return chunks
