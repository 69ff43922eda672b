"""Digest of the rows in an index: their numbers, ids and vectors."""

from __future__ import annotations

import numpy as np
import polars as pl
import xxhash

from bertfeat.search.rowmapwriter import row_map_batches
from bertfeat.vectors.array import chunks_of
from bertfeat.vectors.store import StoreVectors


class RowsDigest:
    """A digest of rows in order; it does not depend on how many are added at a time."""

    def __init__(self) -> None:
        self._rows, self._lengths, self._ids, self._vectors = (xxhash.xxh3_128() for _ in range(4))

    def add(self, source: StoreVectors) -> str:
        """Add all rows of a source; return the xxh3-128 of those so far, hex.

        Raises:
            UserError: A vector holds NaN or infinity; the message names its document.
            StoreError: A part of the store is missing or damaged.
        """
        for frame in row_map_batches(source.store, source.level, source.rows, ["doc_id"]):
            self._rows.update(frame["row"].to_numpy().astype("<i8").tobytes())
            self._add_ids(frame["doc_id"])
        for _, vectors in chunks_of(source):
            self._vectors.update(np.ascontiguousarray(vectors).data)
        parts = [part.digest() for part in (self._rows, self._lengths, self._ids, self._vectors)]
        return xxhash.xxh3_128(b"".join(parts)).hexdigest()

    def _add_ids(self, ids: pl.Series) -> None:
        if ids.dtype != pl.String:
            self._ids.update(ids.to_numpy().astype("<i8").tobytes())
            return
        # With their lengths, no two lists of ids give the same bytes.
        self._lengths.update(ids.str.len_bytes().to_numpy().astype("<u4").tobytes())
        self._ids.update("".join(ids.to_list()).encode())
