"""Vectors of chosen rows of a store, read chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite
from bertfeat.progress import Progress
from bertfeat.ragged import begins_run
from bertfeat.records import BoolArray, IntArray
from bertfeat.store.reader import Store
from bertfeat.vectors.array import FloatArray


class StoreVectors:
    """The vectors of rows of a level, `Vectors` of the stored type; each chunk is checked for NaN the first time.

    `rows`, int64 (n_rows,), ascend; None is all `searchable` ones. No chunk ends inside one of the `documents` of the
    rows, int64 (n_rows,), ascending; a document larger than `chunk_bytes` (as float32) is a chunk alone.
    """

    def __init__(
        self,
        store: Store,
        level: Level | str,
        feature: str,
        *,
        rows: IntArray | None = None,
        documents: IntArray | None = None,
        chunk_bytes: int = 64_000_000,
        progress: Progress | None = None,
    ) -> None:
        self.store = store
        self.level = level
        self.feature = feature
        self.rows: IntArray = np.flatnonzero(searchable(store, level, feature)) if rows is None else rows
        dim = store.feature(level, feature).dim
        self.shape = (len(self.rows), dim)
        self.chunks: Sequence[range] = _cut(len(self.rows), documents, max(1, chunk_bytes // (4 * dim)))
        self._progress = progress or Progress()
        self._checked: set[int] = set()

    def read(self, chunk: int) -> FloatArray:
        """Return the vectors of a chunk, (rows of the chunk, dim), of the stored type; NaN or infinity is an error."""
        span = self.chunks[chunk]
        rows = self.rows[span.start : span.stop]
        self._progress.stage("reading vectors", span.stop, len(self.rows))
        found = self.store.take(self.level, self.feature, rows)
        if chunk not in self._checked:
            self._check(found, rows)
            self._checked.add(chunk)
        return found

    def whole(self) -> FloatArray:
        """Return the vectors of all rows in memory, (n_rows, dim), of the stored type; see `read`."""
        if len(self.rows) == self.store.n_rows(self.level):
            found = self.store.numpy(self.level, self.feature)
        else:
            found = self.store.take(self.level, self.feature, self.rows)
        self._check(found, self.rows)
        return found

    def _check(self, vectors: FloatArray, rows: IntArray) -> None:
        bad = first_not_finite(vectors)
        if bad is not None:
            row = int(rows[bad])
            doc_id = self.store.rows(self.level, [row], ["doc_id"])["doc_id"][0]
            raise UserError(
                f"{self.store.path}: {self.feature} of {self.level} row {row} (document {doc_id!r}) holds NaN or "
                "infinity; run bertfeat verify, and extract the store again"
            )


def searchable(store: Store, level: Level | str, feature: str) -> BoolArray:
    """Return which rows of a level have a vector and are not special tokens, bool (n_rows,)."""
    found = store.valid(level, feature)
    if level == Level.TOKEN:
        found &= ~store.polars(level, ["is_special"])["is_special"].to_numpy()
    return found


def lengths_of(documents: IntArray) -> IntArray:
    """Return the number of rows of each document that has any, int64 (n_documents,), of ascending numbers (n_rows,)."""
    return np.diff(_borders(documents))


def _borders(documents: IntArray) -> IntArray:
    """Return where each document starts, and the number of rows at the end."""
    return np.append(np.flatnonzero(begins_run(documents)), len(documents)).astype(np.int64)


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
