"""Stream of the vectors of a store, which a fit reads chunk by chunk in each pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite
from bertfeat.records import IntArray
from bertfeat.store.reader import Store
from bertfeat.vectors.array import FloatArray

FLOAT32_BYTES = 4


class StoreStream:
    """The vectors of a level and feature, read from the store chunk by chunk: a `VectorStream`.

    Args:
        store: The store.
        level: The level.
        feature: A feature of it, stored or made from what is stored.
        rows: int64, ascending: the rows of the level that take part; None for all.
        documents: int64 (n_rows,), ascending: the document of each row; no chunk ends inside one. None if each row is
            a document.
        chunk_bytes: Bytes of the vectors of a chunk as float32; a larger document is a chunk alone.

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
        chunk_bytes: int = 64_000_000,
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
            UserError: A vector holds NaN or infinity; the message names the row and its document.
            StoreError: A part is missing or damaged.
        """
        span = self.chunks[chunk]
        found = self.store.take(self.level, self.feature, self.rows[span.start : span.stop])
        return self._checked(found, span.start)

    def whole(self) -> FloatArray:
        """Return the vectors of all rows in memory, (n_rows, dim), of the stored type; see `read`."""
        if len(self.rows) == self.store.n_rows(self.level):
            return self._checked(self.store.numpy(self.level, self.feature), 0)
        pieces = [self.read(chunk) for chunk in range(len(self.chunks))]
        return np.concatenate(pieces) if pieces else self.store.slice(self.level, self.feature, 0, 0)

    def _checked(self, vectors: FloatArray, start: int) -> FloatArray:
        """Return vectors, the rows from `start` on, if they are finite."""
        bad = first_not_finite(vectors)
        if bad is not None:
            row = int(self.rows[start + bad])
            doc_id = self.store.rows(self.level, [row], ["doc_id"])["doc_id"][0]
            raise UserError(
                f"{self.store.path}: {self.feature} of {self.level} row {row} (document {doc_id!r}) holds NaN or "
                "infinity; run bertfeat verify, and extract the store again"
            )
        return vectors


def lengths_of(documents: IntArray) -> IntArray:
    """Return the rows of each document that has any, (n_documents,), of ascending document numbers (n_rows,)."""
    return np.diff(_borders(documents)).astype(np.int64)


def _borders(documents: IntArray) -> IntArray:
    """Return where each document starts, and the number of rows at the end."""
    starts = np.flatnonzero(np.diff(documents, prepend=-1))
    return np.append(starts, len(documents)).astype(np.int64)


def _cut(n_rows: int, documents: IntArray | None, max_rows: int) -> list[range]:
    """Cut rows into ranges of at most `max_rows`; a longer document is a range alone."""
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
