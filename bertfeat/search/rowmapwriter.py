"""Row map and digest of the rows in an index, streamed from the parts of a store.

The row map is a Parquet file with one row per vector, in order: `part` (the shard's number), `row` (of the level),
`doc_id`, and if the level has them `token_index`, `word_index`, `segment`, `char_start` and `char_end`. `row` is
ascending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from bertfeat.durable.files import Sink
from bertfeat.durable.publication import publish_file
from bertfeat.levels import LEVELS
from bertfeat.records import IntArray
from bertfeat.store.reader import Store
from bertfeat.store.vectors import opened_part, read_groups
from bertfeat.vectors.array import chunks_of
from bertfeat.vectors.store import StoreVectors

_FIXED = {"part": pa.int32(), "row": pa.int64()}
# In this order. `segment` is the text of a pair that the characters belong to.
_PLACES = ("token_index", "word_index", "segment", "char_start", "char_end")
_ROW_GROUP_ROWS = 1 << 16


def row_map_columns(store: Store, level: str) -> tuple[str, ...]:
    """Return the columns of a level in its row map, besides `part` and `row`; at sentence level only `doc_id`."""
    schema = store.schema(level)
    # A column of the corpus may have the name of a column that bertfeat writes at another level.
    written = {column.name for column in LEVELS[schema.level].columns} & {column.name for column in schema.columns}
    return ("doc_id", *(name for name in _PLACES if name in written))


def row_map_batches(
    store: Store, level: str, rows: IntArray, columns: Sequence[str] | None = None
) -> Iterator[pl.DataFrame]:
    """Yield the row map of some rows of a level, int64 (n,), ascending, a row group of a part at a time.

    Each frame has `part` int32, the shard's number; `row` int64; and `columns`, by default `row_map_columns`.
    """
    names = list(row_map_columns(store, level) if columns is None else columns)
    start = 0
    for shard, part in zip(store.manifest.shards, store.stored_parts(level), strict=True):
        with opened_part(part) as file:
            for group in range(file.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                chosen = rows[slice(*np.searchsorted(rows, [start, stop]))]
                if len(chosen):
                    table = read_groups(file, [group], names).take(pa.array(chosen - start))
                    frame = cast("pl.DataFrame", pl.from_arrow(table))
                    number = pl.lit(shard.shard, pl.Int32).alias("part")
                    yield frame.select(number, pl.Series("row", chosen, pl.Int64), *names)
                start = stop


def write_row_map(path: Path, store: Store, level: str, batches: Iterable[pl.DataFrame]) -> None:
    """Write or replace a row map, a Parquet file; the same rows give the same bytes, whatever the batches."""
    schema = _schema(store, level)
    tables = (frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema) for frame in batches)
    with publish_file(path) as sink:
        _write(sink, schema, tables)


def _schema(store: Store, level: str) -> pa.Schema:
    """Return the Arrow schema of a level's row map, with the types of the parts."""
    names = list(row_map_columns(store, level))
    with opened_part(store.stored_parts(level)[0]) as file:
        stored = file.schema_arrow
    fields = [pa.field(name, kind, nullable=False) for name, kind in _FIXED.items()]
    fields += [pa.field(name, stored.field(name).type, nullable=name != "doc_id") for name in names]
    return pa.schema(fields)


def _write(sink: Sink, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write tables in row groups of equal size."""
    waiting = schema.empty_table()
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=["part"],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in ("row", "char_start") if name in schema.names},
        write_statistics=["row"],
        write_page_checksum=True,
    ) as writer:
        for table in tables:
            waiting = pa.concat_tables([waiting, table])
            while waiting.num_rows >= _ROW_GROUP_ROWS:
                # The bytes would depend on the ends of chunks.
                writer.write_table(waiting.slice(0, _ROW_GROUP_ROWS).combine_chunks())
                waiting = waiting.slice(_ROW_GROUP_ROWS)
        if waiting.num_rows:
            writer.write_table(waiting.combine_chunks())


class RowsDigest:
    """A digest of rows in order; it does not depend on how many are added at a time."""

    def __init__(self) -> None:
        self._rows, self._lengths, self._ids, self._vectors = (xxhash.xxh3_128() for _ in range(4))

    def add(self, source: StoreVectors) -> str:
        """Add all rows of a source; return the xxh3-128 of those so far, hex."""
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
