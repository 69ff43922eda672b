"""Writer of a store: checks the place, repairs what interrupted runs left, and makes the next version at the end."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bertfeat.durable import files
from bertfeat.durable.output_check import listed
from bertfeat.errors import RunError, StoreError, UserError
from bertfeat.records import Plan, Receipt, ShardResult, ShardSpec, StoredShard
from bertfeat.storage import ObjectPath
from bertfeat.store import commit, layout, plan_file, receipts
from bertfeat.store.folder import FileInfo, Folder, folder_at
from bertfeat.store.manifest import (
    COMPACTED,
    Manifest,
    ManifestDamaged,
    build_manifest,
    newest_readable,
    put_manifest,
    read_manifest,
    versions,
)
from bertfeat.store.schema import arrow_schema


def planned(plan: Plan) -> tuple[ShardSpec, ...]:
    """Return the shards of a plan; a store without documents has an empty one."""
    return plan.shards or (() if plan.base else (layout.EMPTY_SHARD,))


@files.os_errors(StoreError)
def open_for_writing(
    path: str | Path | ObjectPath,
    plan: Plan,
    *,
    overwrite: bool = False,
    shared: bool = False,
) -> StoreWriter:
    """Open a store for a plan: a new store, one to resume or repair, or one that the plan grows.

    `overwrite` replaces a store at this place once the new one is whole, and drops unfinished work of other plans. With
    `shared`, other processes of this machine may write shards of the same plan.
    """
    folder = folder_at(path)
    for schema in plan.schemas.values():
        arrow_schema(schema, plan)
    if not plan.base:
        # Check before locking, so that a refused store is not touched. The plan of an append was made for this store.
        _Place.of(folder, plan).check(plan, overwrite=overwrite)
    folder.create()
    return StoreWriter(folder, plan, overwrite=overwrite, shared=shared)


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """What lies at the place of a store: its files, its newest version, and the plans of work that is not in it."""

    folder: Folder
    there: Mapping[str, FileInfo]
    newest: Manifest | None
    others: tuple[str, ...]

    @classmethod
    def of(cls, folder: Folder, plan: Plan) -> Self:
        """Look at a place. Left out are the files of other plans that the newest version lists, which may be many."""
        newest, listed = newest_readable(folder), set[str]()
        if newest is not None:
            old = [shard for shard in newest.shards if shard.plan_hash != plan.plan_hash]
            listed.update(layout.work_path(shard.plan_hash) for shard in old)
            listed.update(part.path for shard in old for part in shard.parts)
            listed.update(map(layout.manifest_path, range(newest.first_version, newest.version + 1)))
        there = folder.listing(listed)
        known = newest.plan_hashes if newest else set()
        for version in map(layout.version_of, there):
            # Replaced versions are still there if the process that removes them was killed.
            if newest is not None and version is not None and version < newest.first_version:
                with contextlib.suppress(ManifestDamaged, FileNotFoundError):
                    known |= read_manifest(folder, version).plan_hashes
        works = {work for work in map(layout.work_of, there) if work is not None}
        return cls(folder, there, newest, tuple(sorted(works - known)))

    def check(self, plan: Plan, *, overwrite: bool) -> None:
        """Refuse a place that holds something else, or a store that the plan does not make, continue or grow."""
        path = self.folder.path
        foreign = [name for name, info in self.there.items() if info.oddity or not layout.is_piece(name)]
        links = [name for name in foreign if self.there[name].oddity == "a symbolic link"]
        if links:
            raise StoreError(f"{path}: holds symbolic links ({listed(links)}); remove them or choose another `output`")
        if foreign and (overwrite or (self.newest is None and len(foreign) == len(self.there))):
            raise StoreError(
                f"{path}: holds files that are not part of a store ({listed(foreign)}); choose another `output`"
            )
        if overwrite or (self.newest is not None and plan.plan_hash in self.newest.plan_hashes):
            return
        if plan.base and (self.newest is None or self.newest.plan_hash != plan.base):
            raise StoreError(f"{path}: another process has changed the store meanwhile; run the same command again")
        if self.newest is not None and not plan.base:
            self._check_same([state.plan_hash for state in self.newest.history], plan)
        for other in self.others:
            if other != plan.plan_hash and not plan.base:
                self._check_same([other], plan)
            elif other != plan.plan_hash and self._can_finish(other):
                instead = "" if COMPACTED in plan.fields else ", or pass `overwrite` to drop it"
                raise StoreError(f"{path}: {self._described(other)} has not finished; run that command again{instead}")
        if not self.others and self.newest is None and any(map(layout.is_part, self.there)):
            raise StoreError(
                f"{path}: holds parts, and no plan or manifest shows what they are; use another folder or `overwrite`"
            )

    def _check_same(self, others: Sequence[str], plan: Plan) -> None:
        plans = (plan_file.read_plan(self.folder, other) for other in others)
        stored = next((found for found in plans if found is not None), None)
        if stored is None:
            raise StoreError(
                f"{self.folder.path}: {layout.plan_path(others[0])} is missing, so nothing shows how the store was "
                "made; use another folder or `overwrite`"
            )
        plan_file.check_same_plan(self.folder.path, stored, plan, has_grown=len(others) > 1)

    def _can_finish(self, other: str) -> bool:
        """Return whether other unfinished work may become the next version."""
        with contextlib.suppress(plan_file.PlanDamaged):
            stored = plan_file.read_plan(self.folder, other)
            return stored is not None and stored.base in ("", self.newest.plan_hash if self.newest else "")
        return False

    def _described(self, other: str) -> str:
        stored = plan_file.read_plan(self.folder, other)
        assert stored is not None
        if COMPACTED in stored.fields:
            return "a compaction"
        what = "an append" if stored.base else "an extraction that replaces it"
        return f"{what} of {listed([file.path for file in stored.inputs])}"

    def superfluous(self, plan: Plan, *, overwrite: bool) -> list[str]:
        """Return the files that neither the newest version nor work that may finish needs, in the order to remove them.

        The work of replaced versions goes before their manifests, which show that it is not unfinished. The parts go
        last: no manifest must name a part that is gone.
        """
        shards = () if self.newest is None else self.newest.shards
        first = 0 if self.newest is None else self.newest.first_version
        listed = {file.path for shard in shards for file in shard.files}
        listed |= {layout.part_path(lvl, s.index, plan.plan_hash) for lvl in plan.schemas for s in planned(plan)}
        others = {o for o in self.others if o != plan.plan_hash and not overwrite and self._can_finish(o)}
        ends = tuple(f"-{work[:8]}.parquet" for work in others)
        works = {plan.plan_hash, *others, *(self.newest.made_by if self.newest else ())}
        manifests, parts, work = [], [], []
        for name in self.there:
            if (version := layout.version_of(name)) is not None and version < first:
                manifests.append(name)
            elif layout.is_part(name) and name not in listed and not name.endswith(ends):
                parts.append(name)
            elif (of := layout.work_of(name)) is not None and of not in works:
                work.append(name)
        return [*work, *manifests, *parts]


class StoreWriter:
    """A store that this process writes; made by `open_for_writing`.

    As a context manager it releases the lock at the end. If the block raises a `UserError` before the first commit, it
    removes what it created. `newest` is the newest version when it was opened; None in a new store.
    """

    def __init__(self, folder: Folder, plan: Plan, *, overwrite: bool, shared: bool) -> None:
        self.root = folder.path
        self.plan = plan
        self._folder = folder
        self._shared = shared
        self._known: dict[int, Receipt] = {}
        self._lock = contextlib.ExitStack()
        # If another process holds the lock, the folders are not ours to remove.
        self._lock.enter_context(folder.lock(shared=shared))
        try:
            # From here on, no other process of this machine changes the folder.
            place = _Place.of(folder, plan)
            place.check(plan, overwrite=overwrite)
            self.newest = place.newest
            self._is_known = self.newest is not None and plan.plan_hash in self.newest.plan_hashes
            is_newest = self.newest is None or self.newest.plan_hash == plan.plan_hash
            self._replaces = overwrite and not plan.base and not is_newest
            self._shards = self._open_shards()
            if not shared:
                folder.clean_tmp()
                folder.remove(place.superfluous(plan, overwrite=overwrite))
            self._settle_plan()
            if overwrite and self._is_known:
                self.withdraw(self._shards)
            else:
                self._recover(place.there)
        except BaseException:
            if not shared:
                folder.remove_empty()
            self.close()
            raise

    def _open_shards(self) -> tuple[ShardSpec, ...]:
        """Return the shards of the plan that are to be done; none if a compaction has joined them with others."""
        if self._is_known and not self._replaces:
            assert self.newest is not None
            listed = {shard.shard for shard in self.newest.shards if shard.plan_hash == self.plan.plan_hash}
            return tuple(shard for shard in planned(self.plan) if shard.index in listed)
        return planned(self.plan)

    def _settle_plan(self) -> None:
        """Write the plan, unless it is there or its shards were joined with others."""
        if self._is_known and not self._shards:
            return
        with contextlib.suppress(plan_file.PlanDamaged):
            if plan_file.read_plan(self._folder, self.plan.plan_hash) is not None:
                return
        plan_file.write_plan(self._folder, self.plan)

    def _recover(self, there: Mapping[str, FileInfo]) -> None:
        """Take over the receipts that can be trusted, and remove the others, so that their shards are repeated.

        A part is read again only if it was written after its receipt. A lost receipt of a finished shard is made again
        from the manifest if its files have the digests listed there.
        """
        plan_hash = self.plan.plan_hash
        found = {r.shard: r for r in receipts.read_receipts(self._folder, self._places(self._shards))}
        listed = {s.shard: s for s in (self.newest.shards if self.newest else ()) if s.plan_hash == plan_hash}
        # What others commit meanwhile may be in a listing in part, but whole in one that follows their receipt.
        now = self._folder.listing() if self._shared else there
        for index in (shard.index for shard in self._shards):
            shard: StoredShard | None = found.get(index) or listed.get(index)
            is_good = shard is not None and receipts.belongs(shard, self.plan) and receipts.has_files(now, shard)
            is_known = index in found and is_good and receipts.is_untouched(now, found[index])
            if shard is None or not is_good or not (is_known or receipts.is_sound(self._folder, shard)):
                self._folder.remove([name for name in [layout.receipt_path(plan_hash, index)] if name in there])
                continue
            self._known[index] = found.get(index) or receipts.receipt_of(shard)
            if not is_known:
                receipts.write_receipt(self._folder, self._known[index])

    def __enter__(self) -> Self:
        return self

    @files.os_errors(RunError)
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, UserError) and not self._shared and not self._is_known and not self.receipts():
                self._folder.remove([layout.plan_path(self.plan.plan_hash)])
                self._folder.remove_empty()
        finally:
            self.close()

    @files.os_errors(RunError)
    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    @files.os_errors(RunError)
    def pending(self) -> tuple[ShardSpec, ...]:
        """Return the shards without a receipt, in corpus order; commits of other processes count."""
        self._refresh()
        return tuple(shard for shard in self._shards if self.plan.shards and shard.index not in self._known)

    @files.os_errors(RunError)
    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of the shards that are done, in corpus order."""
        self._refresh()
        return tuple(self._known[shard.index] for shard in self._shards if shard.index in self._known)

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Write a finished shard; see `commit_shard`."""
        return commit.commit_shard(self.root, self.plan, shard, result)

    @files.os_errors(RunError)
    def withdraw(self, shards: Iterable[ShardSpec]) -> None:
        """Remove the receipts of shards, so that they are repeated."""
        again = {layout.receipt_path(self.plan.plan_hash, shard.index): shard.index for shard in shards}
        self._known = {index: receipt for index, receipt in self._known.items() if index not in again.values()}
        self._folder.remove(again)

    @property
    def is_complete(self) -> bool:
        """Whether every shard is done and the newest version has them."""
        is_done = len(self.receipts()) == len(self._shards)
        return self._is_known and not self._replaces and is_done and self._next() is None

    def _next(self) -> Manifest | None:
        """Return the version that the shards make; None if the newest version has them."""
        newest, shards = self.newest, [receipts.stored(receipt) for receipt in self.receipts()]
        if not shards and (self._is_known or not self.plan.base):
            return None
        made = build_manifest(self.plan, shards, newest, replaces=self._replaces)
        if newest is None and (there := versions(self._folder)):
            # All are damaged: the last one is made again.
            made = dataclasses.replace(made, version=there[-1], first_version=there[-1])
        is_same = newest is not None and (made.shards, made.plan_hash) == (newest.shards, newest.plan_hash)
        return None if is_same else made

    @files.os_errors(RunError)
    def complete(self) -> None:
        """Make the next version, unless the newest one has all shards; then remove what no version needs any more.

        If another run has made the version, what this one has written is removed, unless the version has it too.
        """
        if self._shards == (layout.EMPTY_SHARD,) and not self.receipts():
            self.commit(layout.EMPTY_SHARD, commit.empty_result(self.plan))
        missing = self.pending()
        if missing:
            named = ", ".join(shard.name for shard in missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise RunError(f"{self.root}: {len(missing)} shards are not done ({named}); run the same command again")
        made = self._next()
        if made is not None:
            if gone := self._folder.missing(file.path for receipt in self.receipts() for file in receipt.files):
                raise RunError(f"{self.root}: another run has removed {listed(gone)}; run the same command again")
            try:
                put_manifest(self._folder, made)
            except StoreError as error:
                winner = newest_readable(self._folder)
                if winner is not None and self.plan.plan_hash in winner.plan_hashes:
                    raise StoreError(
                        f"{self.root}: another run of the same plan has made version {made.version}, with other bytes "
                        "(another processor?); run bertfeat verify"
                    ) from error
                self._drop_own()
                raise
            self.newest, self._is_known, self._replaces = made, True, False
            if 0 < made.version == made.first_version:
                self._folder.remove(_Place.of(self._folder, self.plan).superfluous(self.plan, overwrite=False))
        if not self._shared:
            # Workers that were killed leave unfinished files.
            self._folder.clean_tmp()

    def _drop_own(self) -> None:
        """Remove the work of a plan that cannot become a version any more."""
        there = self._folder.listing()
        end = f"-{self.plan.plan_hash[:8]}.parquet"
        mine = [n for n in there if layout.work_of(n) == self.plan.plan_hash or (layout.is_part(n) and n.endswith(end))]
        self._folder.remove(mine)

    def _places(self, shards: Iterable[ShardSpec]) -> list[tuple[str, int]]:
        return [(self.plan.plan_hash, shard.index) for shard in shards]

    def _refresh(self) -> None:
        unknown = [shard for shard in self._shards if shard.index not in self._known]
        for receipt in receipts.read_receipts(self._folder, self._places(unknown)):
            self._known[receipt.shard] = receipt
