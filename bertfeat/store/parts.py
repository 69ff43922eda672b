"""Writer of parts: one level table of one shard becomes one Parquet file; the same table gives the same bytes.

Vectors are stored uncompressed and PLAIN, with one page for each column chunk, so the values of a chunk are its last
`rows x width` bytes. https://parquet.apache.org/docs/file-format/data-pages/
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import accumulate
from typing import IO, Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from bertfeat.choices import StoreDtype, VectorEncoding
from bertfeat.durable import files
from bertfeat.durable.records import encode
from bertfeat.records import BoolArray, FeatureColumn, LevelSchema, LevelTable, PartInfo, Plan, VectorRuns
from bertfeat.store import layout
from bertfeat.store.folder import Folder
from bertfeat.store.schema import arrow_array, arrow_fields, arrow_schema, row_group_rows
from bertfeat.store.vector_layout import VectorLayout

# More than the size of any column chunk, which so becomes one page.
_PAGE_BYTES = 1 << 30


def write_part(folder: Folder, plan: Plan, shard: int, table: LevelTable) -> PartInfo:
    """Write a part whole; ValueError if a column does not fit its type."""
    name = layout.part_path(table.level, shard, plan.plan_hash)
    schema = plan.schemas[table.level]
    arrow = _arrow_table(table, arrow_schema(schema, plan), VectorLayout.of(plan))
    runs: VectorRuns | None = None

    def fill(sink: files.Sink) -> None:
        nonlocal runs
        _write_parquet(sink, arrow, table, plan, shard)
        runs = _find_runs(sink, table, schema.features, VectorLayout.of(plan))

    n_bytes, digest = folder.write_part(name, fill)
    return PartInfo(table.level, name, table.n_rows, n_bytes, digest, runs)


def _part_metadata(plan: Plan, shard: int, table: LevelTable) -> dict[str, Any]:
    """Return a part's description of itself, kept under the file metadata key `bertfeat`."""
    return {
        **plan.metadata,
        "format_version": plan.format_version,
        "plan_hash": plan.plan_hash,
        "shard": shard,
        "level": str(table.level),
        "n_rows": table.n_rows,
        "n_null_vectors": 0 if table.valid is None else int(np.count_nonzero(~table.valid)),
    }


def _write_parquet(sink: files.Sink, arrow: pa.Table, table: LevelTable, plan: Plan, shard: int) -> None:
    features = plan.schemas[table.level].features
    vectors = VectorLayout.of(plan)
    metadata = {layout.METADATA_KEY: encode(_part_metadata(plan, shard, table)).decode()}
    n_rows = row_group_rows(features, vectors)
    # polars writes lists of floats at a quarter of pyarrow's cost, but has no fixed-size binary, and cannot write null
    # lists of elements that are not null, which parts with words lost to truncation need.
    if vectors.encoding is VectorEncoding.ARRAY and (table.valid is None or bool(table.valid.all())):
        frame = cast("pl.DataFrame", pl.from_arrow(arrow, rechunk=False))
        frame.write_parquet(
            cast("IO[bytes]", sink),
            compression="uncompressed",
            statistics=False,
            row_group_size=n_rows,
            data_page_size=_PAGE_BYTES,
            metadata=metadata,
            arrow_schema=arrow.schema,
        )
        return
    feature_names = {feature.name for feature in features}
    with pq.ParquetWriter(
        sink,
        arrow.schema.with_metadata(metadata),
        compression="none",
        write_statistics=False,
        use_dictionary=[name for name in arrow.column_names if name not in feature_names],
        data_page_size=_PAGE_BYTES,
        max_rows_per_page=_PAGE_BYTES,
    ) as writer:
        writer.write_table(arrow, row_group_size=n_rows)


def frame_of(table: LevelTable, schema: LevelSchema, dtype: StoreDtype) -> pl.DataFrame:
    """Return a table as a polars frame, the columns and types of its level's parts; vectors are polars Arrays."""
    vectors = VectorLayout(dtype, VectorEncoding.ARRAY)
    return cast("pl.DataFrame", pl.from_arrow(_arrow_table(table, arrow_fields(schema, vectors, {}, {}), vectors)))


def _arrow_table(table: LevelTable, target: pa.Schema, vectors: VectorLayout) -> pa.Table:
    """Return a table in Arrow; contiguous vectors are not copied."""
    arrays = [
        vector_array(np.ascontiguousarray(table.vectors[field.name]), table.valid, vectors)
        if field.name in table.vectors
        else _column(table, field.name, field)
        for field in target
    ]
    return pa.Table.from_arrays(arrays, schema=target)


def _column(table: LevelTable, name: str, field: pa.Field) -> pa.Array:
    if name not in table.columns:
        raise ValueError(f"{table.level} column {name!r} is in the plan, and the corpus does not have it")
    try:
        array = arrow_array(table.columns[name], field.type)
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, OverflowError, UnicodeEncodeError) as error:
        raise ValueError(f"{table.level} column {name!r} does not fit type {field.type}: {error}") from error
    if array.null_count and not field.nullable:
        raise ValueError(f"{table.level} column {name!r} holds nulls, which its schema does not allow")
    return array


def vector_array(array: npt.NDArray[Any], valid: BoolArray | None, vectors: VectorLayout) -> pa.Array:
    """Return contiguous vectors (n_rows, dim) in Arrow, not copied; null where `valid` (n_rows,) is false."""
    n_rows, dim = array.shape
    kind = vectors.arrow(dim)
    if vectors.encoding is VectorEncoding.BINARY:
        bitmap = None if valid is None else arrow_array(valid, pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(kind, n_rows, [bitmap, pa.py_buffer(array)])
    mask = None if valid is None else arrow_array(~valid, pa.bool_())
    values = pa.Array.from_buffers(kind.value_type, array.size, [None, pa.py_buffer(array)])
    return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)


def _find_runs(
    sink: files.Sink, table: LevelTable, features: tuple[FeatureColumn, ...], vectors: VectorLayout
) -> VectorRuns | None:
    """Find the values of a part, all of it written, and compare all of them with the arrays of its table by digest.

    None if a vector is null, the part has no rows, or its values are stored in another way.
    """
    if sink.error is not None:
        raise sink.error
    has_nulls = table.valid is not None and not table.valid.all()
    if has_nulls or not table.n_rows or sys.byteorder != "little":
        return None
    with open(sink.descriptor, "rb", closefd=False) as file:
        runs = _runs_in(pq.read_metadata(file), features, vectors)
        return runs if _digest_with(file, sink.n_bytes, runs, table.vectors) == sink.digest else None


def _runs_in(metadata: pq.FileMetaData, features: tuple[FeatureColumn, ...], vectors: VectorLayout) -> VectorRuns:
    """Return where the values of vector columns, which come last, must be if each column chunk is one page.

    `metadata` is the footer of a part with a known digest: pyarrow ends the process on some damaged footers.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    offsets = {}
    for leaf, feature in enumerate(features, start=metadata.num_columns - len(features)):
        chunks = [(group.num_rows, group.column(leaf)) for group in groups]
        offsets[feature.name] = tuple(
            chunk.data_page_offset + chunk.total_compressed_size - n_rows * feature.dim * vectors.numpy.itemsize
            for n_rows, chunk in chunks
        )
    return VectorRuns(tuple(group.num_rows for group in groups), offsets)


def _digest_with(file: BinaryIO, n_bytes: int, runs: VectorRuns, arrays: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Return the digest that a file would have if its runs were the bytes of arrays; None if they overlap."""
    starts = [0, *accumulate(runs.rows)]
    spans = sorted(
        (offset, name, first, stop)
        for name, offsets in runs.offsets.items()
        for offset, first, stop in zip(offsets, starts, starts[1:], strict=False)
    )
    content = xxhash.xxh3_128()
    place = 0
    for offset, name, first, stop in spans:
        if offset < place:
            return None
        file.seek(place)
        content.update(file.read(offset - place))
        values = np.ascontiguousarray(arrays[name][first:stop])
        content.update(values.reshape(-1).view(np.uint8).data)
        place = offset + values.nbytes
    file.seek(place)
    content.update(file.read(n_bytes - place))
    return content.hexdigest()
