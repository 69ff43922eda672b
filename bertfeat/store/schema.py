"""Arrow schema of a level: the same for every part of the level and for both writers."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from bertfeat.choices import Level, Pooling
from bertfeat.errors import StoreError
from bertfeat.levels import pooling_of
from bertfeat.records import Column, FeatureColumn, LevelSchema, Plan
from bertfeat.store.vector_layout import VectorLayout

_ROW_GROUP_BYTES = 32 << 20
# A column chunk is one page, which writers build in memory: larger ones cost them up to three times the time.
_CHUNK_BYTES = 2 << 20
# A narrow row must not make a row group of a whole shard.
_MAX_ROW_GROUP_ROWS = 1 << 17


def _stored_type(column: Column, kept: Mapping[str, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of a column in a part: the one that polars gives it, so that both writers agree.

    `kept` holds the types of kept columns where a name of one does not define it.
    """
    try:
        asked = kept[column.name] if column.name in kept else pa.type_for_alias(column.type)
        if pa.types.is_dictionary(asked):
            asked = asked.value_type
        # polars panics on this type.
        if not pa.types.is_decimal256(asked):
            empty = cast("pl.Series", pl.from_arrow(pa.nulls(0, asked)))
            return empty.to_arrow(compat_level=pl.CompatLevel.oldest()).type
    except (ValueError, pl.exceptions.PolarsError):
        pass
    raise StoreError(
        f"column {column.name!r} has type {column.type}, which cannot be stored; "
        "cast it to a simple type or leave it out of `keep_columns`"
    )


def kept_types(plan: Plan) -> dict[str, pa.DataType]:
    """Return the types in a plan's `kept_schema`, by column name."""
    if plan.kept_schema is None:
        return {}
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(plan.kept_schema)))
    return {field.name: field.type for field in schema}


def arrow_schema(schema: LevelSchema, plan: Plan) -> pa.Schema:
    """Return the Arrow schema of every part of a level: its columns, then its vectors (nullable, elements not)."""
    return arrow_fields(schema, VectorLayout.of(plan), kept_types(plan), plan.metadata)


def field_metadata(feature: FeatureColumn, level: Level, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return what a vector column says of itself in Arrow; `metadata` is that of the store."""
    pooling = pooling_of(level, metadata)
    own = metadata.get("sentence_model") if pooling == Pooling.MODEL else None
    said = {
        **{name: metadata.get(name) for name in ("model", "revision")},
        "layers": json.dumps(feature.layers),
        "combine": feature.combine,
        "dim": feature.dim,
        "pooling": pooling,
        "normalized": own and json.dumps("normali" in own),
    }
    return {name: str(value) for name, value in said.items() if value}


def arrow_fields(
    schema: LevelSchema, vectors: VectorLayout, kept: Mapping[str, pa.DataType], metadata: Mapping[str, Any]
) -> pa.Schema:
    """Return the Arrow schema of a level whose vectors have this layout; for `kept`, see `kept_types`."""
    fields = [pa.field(c.name, _stored_type(c, kept), nullable=c.nullable) for c in schema.columns]
    of = schema.level, metadata
    fields += [pa.field(f.name, vectors.arrow(f.dim), metadata=field_metadata(f, *of)) for f in schema.features]
    return pa.schema(fields)


def arrow_array(values: Sequence[Any] | npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an Arrow array of a type; masked values become nulls.

    Integers, booleans and strings go through polars: the first `pa.array` of a process imports pandas.
    """
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    data = np.ma.getdata(values) if isinstance(values, np.ndarray) else values
    if not is_text and not (isinstance(data, np.ndarray) and data.dtype.kind in "biu"):
        return pa.array(values, type=kind)
    series = pl.Series(data, dtype=pl.String if is_text else None)
    mask = np.ma.getmask(values)
    if mask is not np.ma.nomask:
        series = series.set(pl.Series(mask), None)
    return series.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(kind)


def row_group_rows(features: tuple[FeatureColumn, ...], vectors: VectorLayout) -> int:
    """Return the rows of a row group, from widths alone: at most 32 MB of vectors, and 2 MB of each column."""
    widths = [feature.dim * vectors.dtype.width for feature in features]
    n_rows = min(_ROW_GROUP_BYTES // max(1, sum(widths)), _CHUNK_BYTES // max([1, *widths]))
    return max(1, min(_MAX_ROW_GROUP_ROWS, n_rows))
