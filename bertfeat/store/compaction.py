"""Compaction: a version with few parts takes the place of those with many, with the same rows and vectors."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bertfeat.choices import Level
from bertfeat.config import parse_size
from bertfeat.errors import ConfigError, StoreError
from bertfeat.progress import Progress, reporting
from bertfeat.records import FileSlice, LevelTable, Plan, ShardResult, ShardSpec
from bertfeat.store.folder import folder_at, is_whole
from bertfeat.store.manifest import COMPACTED
from bertfeat.store.plan_file import hash_of_plan
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import open_for_writing

_LIMIT = "shard_bytes"


def compact(
    store: str | Path | Store, *, shard_bytes: int | str | None = None, progress: bool | Progress | None = None
) -> Store:
    """Join the shards of appends with their neighbours: the next version of a store has fewer parts.

    Rows, their order, and the bits of the vectors stay. Readers see the old parts until the new ones are whole; then
    the old ones are removed, and with them the earlier versions. The same call resumes an interrupted one.

    Args:
        store: A finished store, its folder or its URL.
        shard_bytes: How large the parts of a shard may be together, a number or a size like `256MB`; by default the
            size of the extraction.
        progress: See `bertfeat.extract`.

    Returns:
        The newest version.

    Raises:
        ConfigError: `shard_bytes` is not a size.
        StoreError: There is no finished store, a part is damaged, or another process is writing.
        RunError: The system refused a write; the same call resumes.

    Examples:
        >>> compact("features")  # doctest: +SKIP
        Store('features', sentence: 206 rows)
    """
    opened = open_store(store.path if isinstance(store, Store) else store)
    plans = opened.plans
    size = plans[-1].fields["shard_bytes"] if shard_bytes is None else shard_bytes
    limit = parse_size(size, "shard_bytes")
    if limit < 1:
        raise ConfigError(f"`shard_bytes` {limit} is below 1")
    groups = _groups(opened, limit)
    # Joined parts have fewer bytes than before: the same call might join more of them.
    is_same_call = opened.plan.fields.get(COMPACTED, {}).get(_LIMIT) == limit
    is_done = is_same_call or len(groups) == len(opened.manifest.shards)
    # With nothing to join, the store is opened all the same, to finish the end of an interrupted compaction.
    plan = opened.plan if is_done else _compacted(opened, plans, groups, limit)
    with reporting(progress) as reports, open_for_writing(opened.path, plan) as writer:
        if plan is not opened.plan:
            for shard in writer.pending():
                reports.stage("compacting", shard.index, len(groups))
                writer.commit(shard, _merged(opened, groups[shard.index]))
            writer.complete()
    return open_store(opened.path)


def _groups(store: Store, limit: int) -> list[range]:
    """Return the old shards of each new one: as many as fit into the limit in bytes, at least one."""
    starts: list[int] = []
    total = 0
    for number, shard in enumerate(store.manifest.shards):
        size = sum(part.n_bytes for part in shard.parts)
        if not starts or total + size > limit:
            starts.append(number)
            total = 0
        total += size
    ends = [*starts[1:], len(store.manifest.shards)]
    return [range(*pair) for pair in zip(starts, ends, strict=False)]


def _compacted(store: Store, plans: Sequence[Plan], groups: Sequence[range], limit: int) -> Plan:
    shards: list[ShardSpec] = []
    n_inputs = 0
    for plan in plans:
        shards += (_moved(shard, n_inputs) for shard in plan.shards)
        n_inputs += len(plan.inputs)
    # The cut is a part of the plan: no receipt of another cut may count.
    cut = [shards[group.start].first_row for group in groups]
    fields = {**plans[-1].fields, "base": store.manifest.plan_hash, COMPACTED: {_LIMIT: limit, "first_rows": cut}}
    joined = (_joined(number, shards[group.start : group.stop]) for number, group in enumerate(groups))
    return dataclasses.replace(
        plans[-1],
        plan_hash=hash_of_plan(fields, store.manifest.inputs),
        fields=fields,
        inputs=store.manifest.inputs,
        shards=tuple(joined),
    )


def _moved(shard: ShardSpec, n_inputs: int) -> ShardSpec:
    """Return a shard whose files have other numbers."""
    moved = (dataclasses.replace(piece, file=piece.file + n_inputs) for piece in shard.slices)
    return dataclasses.replace(shard, slices=tuple(moved))


def _joined(number: int, shards: Sequence[ShardSpec]) -> ShardSpec:
    slices: list[FileSlice] = []
    for piece in (piece for shard in shards for piece in shard.slices):
        if slices and slices[-1].file == piece.file:
            slices[-1] = dataclasses.replace(slices[-1], n_rows=slices[-1].n_rows + piece.n_rows)
        else:
            slices.append(piece)
    return ShardSpec(number, shards[0].first_row, sum(shard.n_rows for shard in shards), tuple(slices))


def _merged(store: Store, group: range) -> ShardResult:
    """Return the rows of some shards as those of one, read from whole parts."""
    folder = folder_at(store.path)
    some = Store(store.path, store.manifest.with_shards(store.manifest.shards[group.start : group.stop]))
    for part in (part for level in some.levels for part in some.parts(level)):
        if not is_whole(folder, part):
            raise StoreError(
                f"{store.path / part.path}: its bytes are not those that were written; run bertfeat verify"
            )
    counts: Counter[str] = Counter()
    for shard in some.manifest.shards:
        counts.update(shard.counts)
    return ShardResult({level: _table(some, level) for level in some.levels}, some.bad_rows(), dict(counts), {})


def _table(store: Store, level: Level) -> LevelTable:
    schema = store.schema(level)
    columns = store.arrow(level, [column.name for column in schema.columns])
    return LevelTable(
        level,
        store.n_rows(level),
        {name: columns.column(name).combine_chunks() for name in columns.column_names},
        {feature.name: store.numpy(level, feature.name) for feature in schema.features},
        store.valid(level, schema.features[0].name),
    )
