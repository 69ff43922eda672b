"""Manifests: each version of a store is one file, written last and created only if it is absent; the newest counts.

The same plans and inputs give the same bytes, however often the runs were interrupted.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertfeat.choices import Level, StoreDtype, VectorEncoding
from bertfeat.durable.records import seal, unseal
from bertfeat.errors import StoreError
from bertfeat.records import FORMAT_VERSION, InputFile, LevelSchema, ModelInfo, Plan, StoredShard, by_level
from bertfeat.store import layout
from bertfeat.store.folder import Folder
from bertfeat.store.vector_layout import VectorLayout

#: The plan field of a compaction: the first row of each of its shards.
COMPACTED = "compacted"
#: The plan field and the metadata of a store of vectors that another program made; also the family of its model.
IMPORTED = "imported"


class ManifestDamaged(StoreError):
    """The manifest of a version exists and cannot be read."""


@dataclass(frozen=True, slots=True)
class State:
    """What a store held when a plan was done: its first `n_shards` shards, made from its first `n_inputs` inputs.

    `n_shards` is None if later shards were joined with these.
    """

    plan_hash: str
    n_shards: int | None
    n_inputs: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all shards; rows and bytes by level."""

    n_shards: int
    n_rows: Mapping[Level, int]
    n_bytes: Mapping[Level, int]
    n_bad_rows: int
    counts: Mapping[str, int]


_NOTHING = Totals(0, {}, {}, 0, {})


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of a store: all its parts, and what they hold and were made from.

    `first_version` is the oldest version whose parts are all still there: those before were replaced or compacted.
    `history` has the states of the store, one for each extraction, append and compaction, oldest first; its last plan
    hash is `plan_hash`.
    """

    version: int
    first_version: int
    plan_hash: str
    history: tuple[State, ...]
    metadata: dict[str, Any]
    model: ModelInfo
    store_dtype: StoreDtype
    vector_encoding: VectorEncoding
    levels: Mapping[Level, LevelSchema]
    inputs: tuple[InputFile, ...]
    shards: tuple[StoredShard, ...]
    totals: Totals
    format_version: int = FORMAT_VERSION

    @property
    def vectors(self) -> VectorLayout:
        """The type and encoding of the vectors."""
        return VectorLayout(self.store_dtype, self.vector_encoding)

    @property
    def plan_hashes(self) -> set[str]:
        """The hashes of all plans that the store was made by."""
        return {state.plan_hash for state in self.history}

    @property
    def made_by(self) -> list[str]:
        """The hashes of the plans whose inputs it holds, in order; a compaction stands for those before it."""
        hashes, with_shards = [state.plan_hash for state in self.history], {shard.plan_hash for shard in self.shards}
        return hashes[next((n for n, plan_hash in enumerate(hashes) if plan_hash in with_shards), 0) :]

    @property
    def n_next_row(self) -> int:
        """The number that the next row of the inputs gets; rows that were set aside have numbers too."""
        return self.totals.counts.get("n_documents", 0) + self.totals.n_bad_rows

    def with_shards(self, shards: Sequence[StoredShard]) -> Manifest:
        """Return the manifest with other shards."""
        return dataclasses.replace(self, shards=tuple(shards), totals=_totals(shards))

    def state(self, plan_hash: str) -> Manifest | None:
        """Return the store as it was when a plan was done; None if it never was so, or its shards were joined."""
        found = next((state for state in self.history if state.plan_hash == plan_hash), None)
        if found is None or found.n_shards is None:
            return None
        return self if found.n_shards == len(self.shards) else self.with_shards(self.shards[: found.n_shards])


def build_manifest(
    plan: Plan, shards: Sequence[StoredShard], newest: Manifest | None, *, replaces: bool = False
) -> Manifest:
    """Return the version that a finished plan makes of its finished shards, in corpus order.

    `newest` is the newest version; None in a new store. With `replaces`, what the store held before is left out.
    """
    totals = _totals(shards)
    inputs, history = plan.inputs, [State(plan.plan_hash, len(shards), len(plan.inputs))]
    if newest is not None and not replaces and plan.plan_hash in newest.plan_hashes:
        # Repeated shards, whose bytes may differ on another machine.
        again = {shard.shard: shard for shard in shards}
        mine = [s for s in newest.shards if s.plan_hash == plan.plan_hash]
        assert [shard.shard for shard in mine] == [*again]
        kept = [again[s.shard] if s.plan_hash == plan.plan_hash else s for s in newest.shards]
        version = newest.version + 1
        return dataclasses.replace(newest.with_shards(kept), version=version, first_version=version)
    if newest is not None and COMPACTED in plan.fields:
        before = [dataclasses.replace(state, n_shards=None) for state in newest.history[:-1]]
        history = [*before, State(newest.plan_hash, len(shards), len(newest.inputs)), *history]
    elif newest is not None and plan.base:
        inputs, totals = (*newest.inputs, *plan.inputs), _totals(shards, newest.totals)
        shards = [*newest.shards, *shards]
        history = [*newest.history, State(plan.plan_hash, len(shards), len(inputs))]
    vectors = VectorLayout.of(plan)
    version = 0 if newest is None else newest.version + 1
    only_adds = newest is not None and plan.base and COMPACTED not in plan.fields
    return Manifest(
        version=version,
        first_version=newest.first_version if newest is not None and only_adds else version,
        plan_hash=plan.plan_hash,
        history=tuple(history),
        metadata=plan.metadata,
        model=plan.model,
        store_dtype=vectors.dtype,
        vector_encoding=vectors.encoding,
        levels=plan.schemas,
        inputs=inputs,
        shards=tuple(shards),
        totals=totals,
    )


def _totals(shards: Sequence[StoredShard], before: Totals = _NOTHING) -> Totals:
    rows, n_bytes, counts = Counter(before.n_rows), Counter(before.n_bytes), Counter(before.counts)
    for shard in shards:
        counts.update(shard.counts)
        for part in shard.parts:
            rows[part.level] += part.n_rows
            n_bytes[part.level] += part.n_bytes
    n_bad_rows = before.n_bad_rows + sum(shard.n_bad_rows for shard in shards)
    return Totals(before.n_shards + len(shards), dict(rows), dict(n_bytes), n_bad_rows, dict(counts))


def put_manifest(folder: Folder, manifest: Manifest) -> None:
    """Create a version's manifest; one with the same content may be there, and a damaged one is replaced."""
    name, data = layout.manifest_path(manifest.version), seal(manifest)
    if folder.put_if_absent(name, data, "manifest"):
        return
    try:
        read_manifest(folder, manifest.version)
    except ManifestDamaged:
        folder.write(name, data, "manifest")
        return
    raise StoreError(
        f"{folder.path}: another run has made version {manifest.version} of this store meanwhile; the store is whole, "
        "and this run has added nothing; run the same command again"
    )


def versions(folder: Folder) -> list[int]:
    """Return the numbers of the versions, ascending."""
    found = map(layout.version_of, folder.names(layout.MANIFESTS))
    return sorted(version for version in found if version is not None)


def read_manifest(folder: Folder, version: int | None = None) -> Manifest:
    """Return the manifest of a version, by default the newest.

    Raises:
        FileNotFoundError: There is no such version.
        ManifestDamaged: The manifest is damaged.
    """
    if version is None:
        there = versions(folder)
        if not there:
            raise FileNotFoundError(f"{folder.path / layout.MANIFESTS}: no manifest")
        try:
            return read_manifest(folder, there[-1])
        except FileNotFoundError:
            # It was replaced meanwhile, unless it is a broken link.
            if (now := versions(folder)) == there or not now:
                raise
            return read_manifest(folder, now[-1])
    name = layout.manifest_path(version)
    try:
        found = unseal(Manifest, folder.read(name), newest=FORMAT_VERSION)
        _check_places(found)
    except FileNotFoundError:
        raise
    except StoreError as error:
        raise StoreError(f"{folder.path / name}: {error}") from error
    except (OSError, ValueError) as error:
        raise ManifestDamaged(
            f"{folder.path / name}: {error}; run bertfeat verify, then the command that made this version, or extract "
            "again with `overwrite`"
        ) from error
    return dataclasses.replace(found, levels=by_level(found.levels))


def _check_places(manifest: Manifest) -> None:
    """Raise ValueError if a shard lists a file of another shard, or outside of the store."""
    for shard in manifest.shards:
        own = {layout.part_path(level, shard.shard, shard.plan_hash) for level in manifest.levels}
        own.add(layout.quarantine_path(shard.plan_hash, shard.shard))
        for path in (file.path for file in shard.files):
            if path not in own or not layout.is_piece(path):
                raise ValueError(f"shard {shard.shard} lists {path!r}, which is not a file of this shard")


def newest_readable(folder: Folder) -> Manifest | None:
    """Return the newest manifest that is whole, for a writer, which makes a damaged one again; None without one."""
    for version in reversed(versions(folder)):
        try:
            return read_manifest(folder, version)
        except ManifestDamaged:
            continue
        except FileNotFoundError:
            # It was replaced meanwhile by a newer one.
            return read_manifest(folder)
    return None
