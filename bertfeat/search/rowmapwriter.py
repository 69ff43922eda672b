"""Row map and digest of the rows in an index.

The row map is a Parquet file with one row per vector, in order: `part` (the shard's number), `row` (of the level,
ascending), `doc_id`, and if the level has them `token_index`, `word_index`, `segment`, `char_start` and `char_end`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from bertfeat.durable.publication import publish_file
from bertfeat.levels import LEVELS
from bertfeat.records import IntArray
from bertfeat.store.reader import Store
from bertfeat.vectors.array import chunks_of
from bertfeat.vectors.store import StoreVectors

# In this order. `segment` is the text of a pair that the characters belong to.
_PLACES = ("token_index", "word_index", "segment", "char_start", "char_end")
_ROW_GROUP_ROWS = 1 << 16


def row_map_columns(store: Store, level: str) -> list[str]:
    """Return the columns of a level in its row map, besides `part` and `row`; at sentence level only `doc_id`."""
    schema = store.schema(level)
    # A column of the corpus may have the name of a column that bertfeat writes at another level.
    written = {column.name for column in LEVELS[schema.level].columns} & {column.name for column in schema.columns}
    return ["doc_id", *(name for name in _PLACES if name in written)]


def write_row_map(path: Path, store: Store, level: str, rows: IntArray) -> None:
    """Write or replace the row map of some rows of a level, int64 (n_rows,), ascending."""
    names = row_map_columns(store, level)
    stored = store.rows(level, [], names).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    schema = pa.schema(
        [pa.field("part", pa.int32(), nullable=False), pa.field("row", pa.int64(), nullable=False)]
        + [pa.field(name, stored.field(name).type, nullable=name != "doc_id") for name in names]
    )
    shards = np.array([entry.shard for entry in store.manifest.shards], np.int32)
    ends = np.cumsum([part.n_rows for part in store.parts(level)])
    with (
        publish_file(path) as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            use_dictionary=["part"],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in ("row", "char_start") if name in schema.names},
            write_statistics=["row"],
            write_page_checksum=True,
        ) as writer,
    ):
        for start in range(0, len(rows), _ROW_GROUP_ROWS):
            group = rows[start : start + _ROW_GROUP_ROWS]
            head = pl.DataFrame({"part": shards[np.searchsorted(ends, group, side="right")], "row": group})
            frame = head.hstack(store.rows(level, group, names)).rechunk()
            writer.write_table(frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema))


class RowsDigest:
    """A digest of rows in order; it does not depend on how many are added at a time."""

    def __init__(self) -> None:
        self._rows, self._lengths, self._ids, self._vectors = (xxhash.xxh3_128() for _ in range(4))

    def add(self, source: StoreVectors) -> str:
        """Add all rows of a source; return the xxh3-128 of those so far, hex."""
        for span, vectors in chunks_of(source):
            rows = source.rows[span.start : span.stop]
            self._rows.update(rows.astype("<i8").tobytes())
            self._add_ids(source.store.rows(source.level, rows, ["doc_id"])["doc_id"])
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
