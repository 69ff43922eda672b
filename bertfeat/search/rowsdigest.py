"""Digest of the rows in an index: their numbers, ids and vectors."""

from __future__ import annotations

import numpy as np
import polars as pl
import xxhash

from bertfeat.errors import UserError
from bertfeat.finite import first_not_finite
from bertfeat.search.storevectors import RowBatch, StoreParts


class _RowsDigest:
    """A digest of rows in order: numbers, ids and vectors; it does not depend on the cut into batches."""

    def __init__(self) -> None:
        self._rows, self._lengths, self._ids, self._vectors = (xxhash.xxh3_128() for _ in range(4))

    def add(self, batch: RowBatch) -> None:
        """Add rows whose columns hold `doc_id`."""
        ids = batch.columns["doc_id"]
        self._rows.update(batch.rows.astype("<i8").tobytes())
        if ids.dtype == pl.String:
            # With their lengths, no two lists of ids give the same bytes.
            self._lengths.update(ids.str.len_bytes().to_numpy().astype("<u4").tobytes())
            self._ids.update("".join(ids.to_list()).encode())
        else:
            self._ids.update(ids.to_numpy().astype("<i8").tobytes())
        self._vectors.update(np.ascontiguousarray(batch.vectors).data)

    def hexdigest(self) -> str:
        """Return the xxh3-128, hex."""
        parts = [part.digest() for part in (self._rows, self._lengths, self._ids, self._vectors)]
        return xxhash.xxh3_128(b"".join(parts)).hexdigest()


def digest_rows(source: StoreParts, n_vectors: int = 0) -> tuple[str, str]:
    """Return the digest of the first `n_vectors` rows of a source, and that of all rows.

    Raises:
        UserError: A vector holds NaN or infinity; the message names its document.
        StoreError: A part of the store is missing or damaged.
    """
    digest = _RowsDigest()
    first = digest.hexdigest() if n_vectors == 0 else ""
    for part in range(len(source.parts)):
        for batch in source.row_batches(part, ["doc_id"]):
            _check_finite(source, batch)
            border = n_vectors - batch.positions.start
            if 0 < border <= len(batch.rows):
                digest.add(_slice(batch, 0, border))
                first = digest.hexdigest()
                digest.add(_slice(batch, border, len(batch.rows)))
            else:
                digest.add(batch)
    return first, digest.hexdigest()


def _slice(batch: RowBatch, start: int, stop: int) -> RowBatch:
    positions = batch.positions[start:stop]
    return RowBatch(positions, batch.rows[start:stop], batch.columns[start:stop], batch.vectors[start:stop])


def _check_finite(source: StoreParts, batch: RowBatch) -> None:
    at = first_not_finite(batch.vectors)
    if at is not None:
        raise UserError(
            f"{source.store.path}: row {batch.rows[at]} of level {source.level} (doc_id "
            f"{batch.columns['doc_id'][at]!r}) holds NaN or infinity in {source.feature}, which no index can order; "
            "run bertfeat verify, and extract again"
        )
