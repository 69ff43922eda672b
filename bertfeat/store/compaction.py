"""Compaction: a store of many small parts becomes one of few, with the same rows and vectors, without an encoder."""

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
from bertfeat.storage import ObjectPath, as_path
from bertfeat.store.codec import hash_fields
from bertfeat.store.layout import EMPTY_SHARD
from bertfeat.store.openfolder import folder_at
from bertfeat.store.planstates import COMPACTED, input_fields
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import open_for_writing


def compact(
    store: str | Path | Store,
    output: str | Path,
    *,
    shard_bytes: int | str | None = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
) -> Store:
    """Write a store again with few parts: shards of appends are joined with their neighbours.

    Rows, their order, and the bits of the vectors stay. The old store is not changed. The same call resumes an
    interrupted one. More documents can be appended to the new store.

    Args:
        store: A finished store, its folder or its URL.
        output: The new store's folder or URL.
        shard_bytes: How large the parts of a shard may be together, a number or a size like `256MB`; by default the
            setting of the extraction. A larger shard stays as it is.
        overwrite: Replace a store that is there.
        progress: See `bertfeat.extract`.

    Returns:
        The new store.

    Raises:
        ConfigError: `shard_bytes` is not a size.
        StoreError: There is no finished store, a part is damaged, or the output folder cannot be used.
        RunError: The system refused a write; the same call resumes.

    Examples:
        >>> compact("features", "compacted")  # doctest: +SKIP
        Store('compacted', sentence: 206 rows)
    """
    opened = store if isinstance(store, Store) else open_store(store)
    target = as_path(output)
    if _is_same(opened.path, target):
        raise StoreError(f"{target}: is the store to compact; name another folder")
    plan = opened.plan
    listed = [entry["shard"] for entry in opened.manifest["shards"]]
    if listed != [shard.index for shard in plan.shards or (EMPTY_SHARD,)]:
        raise StoreError(f"{opened.path}: not all of a finished store; run the command that made it to its end")
    limit = parse_size(plan.fields["shard_bytes"] if shard_bytes is None else shard_bytes, "shard_bytes")
    if limit < 1:
        raise ConfigError(f"`shard_bytes` {limit} is below 1")
    groups = _groups(opened, plan, limit)
    with reporting(progress) as reports, open_for_writing(target, _compacted(plan, groups), overwrite=overwrite) as new:
        if not new.is_complete:
            for shard in new.pending():
                reports.stage("compacting", shard.index, len(groups))
                new.commit(shard, _merged(opened, groups[shard.index]))
            new.complete()
    return open_store(target)


def _is_same(one: Path | ObjectPath, other: Path | ObjectPath) -> bool:
    if isinstance(one, Path) and isinstance(other, Path):
        return one.resolve() == other.resolve()
    return str(one) == str(other)


def _groups(store: Store, plan: Plan, limit: int) -> list[range]:
    """Return the old shards of each new one: as many as fit into the limit in bytes, at least one."""
    sizes = [sum(part["n_bytes"] for part in shard["parts"]) for shard in store.manifest["shards"]]
    starts: list[int] = []
    total = 0
    for number, size in enumerate(sizes[: len(plan.shards)]):
        if not starts or total + size > limit:
            starts.append(number)
            total = 0
        total += size
    ends = [*starts[1:], len(plan.shards)]
    return [range(*pair) for pair in zip(starts, ends, strict=False)]


def _compacted(plan: Plan, groups: Sequence[range]) -> Plan:
    # The cut is a part of the plan: no receipt of another cut may count.
    cut = {COMPACTED: [plan.shards[group.start].first_row for group in groups]}
    fields = {**plan.fields, **input_fields(plan.inputs), **cut}
    plan_hash = hash_fields(fields)
    return dataclasses.replace(
        plan,
        plan_hash=plan_hash,
        fields=fields,
        shards=tuple(_joined(number, plan.shards[group.start : group.stop]) for number, group in enumerate(groups)),
        metadata={**plan.metadata, "plan_hash": plan_hash},
        appends=(),
    )


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
    some = Store(store.path, store.manifest.with_shards(group.start, group.stop))
    with store.unreplaced():
        for part in (part for level in some.levels for part in some.parts(level)):
            if not folder.is_whole(part.path, part.n_bytes, part.digest):
                place = store.path / part.path
                raise StoreError(f"{place}: its bytes are not those that were written; run bertfeat verify")
    counts: Counter[str] = Counter()
    for shard in some.manifest["shards"]:
        counts.update(shard["counts"])
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
