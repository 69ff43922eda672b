"""Appends of a store for the command line: which, when, and from what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bertfeat.cli.progress import counted
from bertfeat.errors import StoreError
from bertfeat.records import Receipt
from bertfeat.store.folder import folder_at
from bertfeat.store.manifest import newest_readable
from bertfeat.store.planfile import plan_hashes, read_plan
from bertfeat.store.storedescription import StoreDescription

_MAX_SHOWN = 5


def append_entries(store: StoreDescription, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Return each append since the last compaction as JSON values, in order; `receipts` tell when it was finished."""
    manifest = store.manifest
    times = {receipt.shard: receipt.created_at for receipt in receipts}
    found = []
    for before, after in pairwise(state for state in manifest.history if state.n_shards is not None):
        if before.n_inputs == after.n_inputs:
            continue
        shards = manifest.shards[before.n_shards : after.n_shards]
        found.append(
            {
                "n_documents": sum(shard.counts.get("n_documents", 0) for shard in shards),
                "n_shards": len(shards),
                "inputs": [file.path for file in manifest.inputs[before.n_inputs : after.n_inputs]],
                "finished_at": times.get(shards[-1].shard) if shards else None,
            }
        )
    return found


def unfinished_append(store: StoreDescription) -> list[str]:
    """Return the inputs of an append that has not finished; nothing without one."""
    known = store.manifest.plan_hashes
    try:
        plans = [read_plan(store.path, plan) for plan in plan_hashes(folder_at(store.path)) if plan not in known]
    except StoreError:
        return []
    return [file.path for plan in plans if plan and plan.base == store.manifest.plan_hash for file in plan.inputs]


def inputs_of_shards(path: str, shards: Collection[int]) -> str:
    """Return the inputs of some shards of a grown store, as text; empty if the store has not grown."""
    manifest = newest_readable(folder_at(path))
    if manifest is None or len(manifest.history) == 1:
        return ""
    names: dict[str, None] = {}
    for plan_hash in dict.fromkeys(shard.plan_hash for shard in manifest.shards if shard.shard in shards):
        plan = read_plan(path, plan_hash)
        for shard in (shard for shard in (plan.shards if plan else ()) if shard.index in shards):
            names |= dict.fromkeys(plan.inputs[piece.file].path for piece in shard.slices if plan)
    more = len(names) - _MAX_SHOWN
    return ", ".join(list(names)[:_MAX_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def append_lines(entries: Sequence[Mapping[str, Any]], unfinished: list[str]) -> list[str]:
    """Return what `bertfeat inspect` prints of appends and of the inputs of one that has not finished."""
    lines = [f"appends    {counted(len(entries), 'append')}"] if entries else []
    if len(entries) > _MAX_SHOWN:
        lines[0] += f", the last {_MAX_SHOWN}:"
    for entry in entries[-_MAX_SHOWN:]:
        when = entry["finished_at"] or "time unknown"
        lines.append(f"           {when}  {counted(entry['n_documents'], 'document')} from {_named(entry['inputs'])}")
    if unfinished:
        lines.append(f"           not finished: {_named(unfinished)}; run that append again to finish it")
    return lines


def _named(inputs: list[str]) -> str:
    more = f" and {len(inputs) - 1:,} more" if len(inputs) > 1 else ""
    return f"{inputs[0]}{more}" if inputs else "unknown inputs"
