"""Appends of a store for the command line: which, when, and from what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bertfeat.cli.progress import counted
from bertfeat.errors import StoreError
from bertfeat.records import Receipt
from bertfeat.store.planfile import read_plan
from bertfeat.store.storedescription import StoreDescription

_MAX_SHOWN = 5


def append_entries(store: StoreDescription, receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Return each append as JSON values, in order; paths and times are missing if the private folder was not copied."""
    appends = store.manifest.get("appends", [])
    if not appends:
        return []
    shards = store.manifest["shards"]
    firsts = [append["first_shard"] for append in appends]
    times = {receipt.shard: receipt.created_at for receipt in receipts}
    try:
        inputs = [file.path for file in store.plan.inputs]
    except StoreError:
        inputs = []
    borders = [append["first_input"] for append in appends]
    return [
        {
            "n_documents": sum(shard["counts"].get("n_documents", 0) for shard in shards[first:end]),
            "n_shards": end - first,
            "inputs": inputs[start:stop],
            "finished_at": times.get(end - 1) if end > first else None,
        }
        for first, end, start, stop in zip(
            firsts, [*firsts[1:], len(shards)], borders, [*borders[1:], len(inputs)], strict=True
        )
    ]


def unfinished_append(store: StoreDescription) -> list[str]:
    """Return the inputs of an append that has not finished; nothing without one."""
    try:
        plan = read_plan(store.path)
    except StoreError:
        return []
    return [] if plan is None else [file.path for file in plan.inputs[len(store.plan.inputs) :]]


def inputs_of_shards(path: str, shards: Collection[int]) -> str:
    """Return the inputs of some shards of a grown store, as text; empty if the store has not grown."""
    try:
        plan = read_plan(path)
    except StoreError:
        return ""
    if plan is None or not plan.appends:
        return ""
    files = {piece.file for shard in plan.shards if shard.index in shards for piece in shard.slices}
    names = [plan.inputs[file].path for file in sorted(files)]
    return ", ".join(names[:_MAX_SHOWN]) + (f" and {len(names) - _MAX_SHOWN:,} more" if len(names) > _MAX_SHOWN else "")


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
