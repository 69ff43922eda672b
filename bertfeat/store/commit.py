"""Commit of one shard: parts first, its receipt last; needs no lock, so that worker processes can do it."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from bertfeat.errors import FeatureError
from bertfeat.finite import first_not_finite
from bertfeat.records import LevelSchema, LevelTable, Plan, Receipt, ShardResult, ShardSpec
from bertfeat.storage import AnyPath
from bertfeat.store import parts, receipts
from bertfeat.store.folder import folder_at
from bertfeat.store.vector_layout import VectorLayout


def commit_shard(root: AnyPath, plan: Plan, shard: ShardSpec, result: ShardResult) -> Receipt:
    """Write a shard's parts, set-aside rows and receipt into a store that is open for writing; return the receipt.

    Idempotent: a shard that is committed again gives the same parts. Processes may commit shards at the same time.
    Nothing is written if a table does not follow its schema (ValueError), or a vector holds NaN or infinity.
    """
    check_result(result, plan)
    folder = folder_at(root)
    receipt = Receipt(
        shard=shard.index,
        plan_hash=plan.plan_hash,
        parts=tuple(parts.write_part(folder, plan, shard.index, result.tables[level]) for level in plan.schemas),
        n_bad_rows=len(result.bad_rows),
        counts=dict(result.counts),
        quarantine=receipts.write_quarantine(folder, plan, shard.index, result.bad_rows),
        seconds=dict(result.seconds),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=dict(result.notes),
    )
    receipts.write_receipt(folder, receipt)
    return receipt


def empty_result(plan: Plan) -> ShardResult:
    """Return the result of a shard without rows."""
    kind = VectorLayout.of(plan).numpy
    tables = {
        level: LevelTable(
            level,
            0,
            {column.name: [] for column in schema.columns},
            {feature.name: np.empty((0, feature.dim), kind) for feature in schema.features},
        )
        for level, schema in plan.schemas.items()
    }
    return ShardResult(tables=tables, bad_rows=(), counts={}, seconds={})


def check_result(result: ShardResult, plan: Plan) -> None:
    """Check all tables before any byte is written: those of a plan's levels, with vectors that are finite."""
    if set(result.tables) != set(plan.schemas):
        raise ValueError(f"tables of levels {sorted(result.tables)}, planned are {sorted(plan.schemas)}")
    for level, table in result.tables.items():
        _check_shape(table, plan.schemas[level], VectorLayout.of(plan))
    for level, table in result.tables.items():
        for feature in plan.schemas[level].features:
            _check_finite(table, feature.name)


def _check_shape(table: LevelTable, schema: LevelSchema, vectors: VectorLayout) -> None:
    found: dict[str, object] = {name: len(values) for name, values in table.columns.items()}
    found |= {name: (array.dtype, array.shape) for name, array in table.vectors.items()}
    wanted: dict[str, object] = {column.name: table.n_rows for column in schema.columns}
    wanted |= {feature.name: (vectors.numpy, (table.n_rows, feature.dim)) for feature in schema.features}
    if found != wanted or (table.valid is not None and table.valid.shape != (table.n_rows,)):
        raise ValueError(f"{schema.level} table of {table.n_rows} rows has {found}, its schema {wanted}")


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
