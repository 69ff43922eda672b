"""Commit of one shard: parts first, its receipt last; needs no lock, so that worker processes can do it."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from bertfeat.records import LevelTable, Plan, Receipt, ShardResult, ShardSpec
from bertfeat.storage import AnyPath
from bertfeat.store import parts, receipts
from bertfeat.store.checks import check_result
from bertfeat.store.folder import folder_at
from bertfeat.store.vectorlayout import VectorLayout


def commit_shard(root: AnyPath, plan: Plan, shard: ShardSpec, result: ShardResult) -> Receipt:
    """Write a shard's parts, set-aside rows and receipt into a store that is open for writing.

    Idempotent: a shard that is committed again gives the same parts. Processes may commit shards at the same time.

    Args:
        root: The store's folder.
        plan: The plan that the store was opened with.
        shard: The shard, one of the plan's.
        result: Its tables, one per level of the plan.

    Returns:
        The receipt.

    Raises:
        FeatureError: A vector holds NaN or infinity; nothing is written.
        RunError: The system refused a write, and existing files are unchanged.
        ValueError: The tables do not follow the plan's schemas; nothing is written.
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
