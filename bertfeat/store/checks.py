"""Checks of a shard's tables before any byte of them is written."""

from __future__ import annotations

import numpy as np

from bertfeat.errors import FeatureError
from bertfeat.records import LevelSchema, LevelTable, Plan, ShardResult
from bertfeat.store.vectorlayout import VectorLayout
from bertfeat.vectors.finite import first_not_finite


def check_result(result: ShardResult, plan: Plan) -> None:
    """Check that a shard's tables follow the plan and that every vector is finite.

    Raises:
        FeatureError: A vector of a valid row holds NaN or infinity in the stored type.
        ValueError: A table does not follow its schema.
    """
    if set(result.tables) != set(plan.schemas):
        raise ValueError(f"tables of levels {sorted(result.tables)}, planned are {sorted(plan.schemas)}")
    vectors = VectorLayout.of(plan)
    for level, table in result.tables.items():
        _check_shape(table, plan.schemas[level], vectors)
    for level, table in result.tables.items():
        for feature in plan.schemas[level].features:
            _check_finite(table, feature.name)


def _check_shape(table: LevelTable, schema: LevelSchema, vectors: VectorLayout) -> None:
    if list(table.columns) != [column.name for column in schema.columns]:
        raise ValueError(f"{schema.level} table has columns {list(table.columns)}, not those of its schema")
    if set(table.vectors) != {feature.name for feature in schema.features}:
        raise ValueError(f"{schema.level} table has vectors {sorted(table.vectors)}, not those of its schema")
    for name, values in table.columns.items():
        if len(values) != table.n_rows:
            raise ValueError(f"{schema.level} column {name!r} has {len(values)} values for {table.n_rows} rows")
    for feature in schema.features:
        array = table.vectors[feature.name]
        if array.shape != (table.n_rows, feature.dim) or array.dtype != vectors.numpy:
            raise ValueError(
                f"{schema.level} vectors {feature.name!r} are {array.dtype} {array.shape}, "
                f"not {vectors.dtype} {(table.n_rows, feature.dim)}"
            )
    if table.valid is not None and table.valid.shape != (table.n_rows,):
        raise ValueError(f"{schema.level} table has {table.valid.shape} validity flags for {table.n_rows} rows")


def _check_finite(table: LevelTable, name: str) -> None:
    row = first_not_finite(table.vectors[name], table.valid)
    if row is None:
        return
    vector = table.vectors[name][row]
    value = float(vector[~np.isfinite(vector)][0])
    doc_id = table.columns["doc_id"][row] if "doc_id" in table.columns else None
    remedy = "; store it with `store_dtype='float32'`" if vector.dtype == np.float16 and np.isinf(value) else ""
    raise FeatureError(
        f"document {doc_id!r}: {name} of {table.level} row {row} of its shard holds {value} in {vector.dtype}{remedy}"
    )
