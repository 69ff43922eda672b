"""Writer of a store: the shards that remain, their commits, and the manifest at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from bertfeat.corpus.duplicates import IdDigests
from bertfeat.durable import files
from bertfeat.errors import RunError, StoreError, UserError
from bertfeat.records import Plan, Receipt, ShardResult, ShardSpec
from bertfeat.storage import ObjectPath
from bertfeat.store import commit, idfile, layout, opening, planfile, receipts
from bertfeat.store.folder import Folder, Lease, Lock
from bertfeat.store.manifest import Manifest, build_manifest, read_manifest, write_manifest
from bertfeat.store.openfolder import folder_at
from bertfeat.store.planstates import later_first, number_of, state_of
from bertfeat.store.receipts import StoredReceipt
from bertfeat.store.schema import arrow_schema


@files.os_errors(StoreError)
def open_for_writing(
    path: str | Path | ObjectPath,
    plan: Plan,
    *,
    overwrite: bool = False,
    drop_unfinished: bool = False,
    recheck: bool = False,
) -> StoreWriter:
    """Open a store for a plan: a new store, one of the same plan to resume, or one that the plan continues.

    If the stored plan continues this one, the later appends stay as they are.

    Args:
        path: The store's folder, whose missing parents are created, or its URL in an object store.
        plan: What the store is made from.
        overwrite: Replace a store at this place; files that are not part of a store are never deleted.
        drop_unfinished: Remove an append that has not finished and is not in the plan.
        recheck: Read every part again, even if its modification time has not changed.

    Raises:
        PlanMismatch: The place holds a store with other settings or inputs; nothing was written.
        StoreError: A column cannot be stored, the place holds something else, or another process is writing; nothing
            was written.
        StorageError: The object store cannot be used.
        RunError: The system refused a write.
    """
    folder = folder_at(path)
    for schema in plan.schemas.values():
        arrow_schema(schema, plan)
    if opening.look(folder, overwrite=overwrite) and not overwrite:
        opening.check_plan(folder, plan, drop_unfinished=drop_unfinished)
    folder.create()
    try:
        return _open_locked(folder, plan, overwrite, drop_unfinished, recheck)
    except BaseException:
        folder.remove_if_empty()
        raise


def _open_locked(folder: Folder, plan: Plan, overwrite: bool, drop_unfinished: bool, recheck: bool) -> StoreWriter:
    lock = folder.lock()
    # From here on, no other process can change the folder.
    writer = StoreWriter(folder, plan, lock)
    try:
        if overwrite:
            opening.clear(folder)
        else:
            opening.check_plan(folder, plan, drop_unfinished=drop_unfinished)
        writer.whole = plan if drop_unfinished else opening.whole_plan(folder, plan)
        folder.prepare(tuple(plan.schemas))
        writer.is_new = _settle_plan(folder, writer.whole)
        first = 0 if recheck else writer.keep_finished()
        opening.recover(folder, writer.whole, recheck=recheck, first=first, n_planned=len(plan.shards))
        writer.withdraw_manifest()
    except BaseException:
        try:
            writer.discard_if_empty()
        finally:
            writer.close()
        raise
    return writer


def _settle_plan(folder: Folder, plan: Plan) -> bool:
    """Write a plan, unless it is there; return whether it was written."""
    try:
        stored = planfile.read_plan(folder)
        if stored is not None and stored.plan_hash == plan.plan_hash:
            return False
    except planfile.PlanDamaged:
        pass
    planfile.write_plan(folder, plan)
    return True


class StoreWriter:
    """A store that this process has locked for writing; made by `open_for_writing`.

    As a context manager it releases the lock at the end. If the block raises a `UserError` before the first commit, it
    removes what it created.

    Attributes:
        root: Where the store is.
        plan: The plan that it was opened for.
        whole: The plan of all that the folder may hold: `plan`, or one that continues it.
        is_new: Whether no run of this plan was here before.
    """

    def __init__(self, folder: Folder, plan: Plan, lock: Lock) -> None:
        self.root = folder.path
        self.plan = self.whole = plan
        self.is_new = True
        self._folder = folder
        self._lock = lock
        self._known: dict[int, StoredReceipt] = {}
        # The manifest of the store before an append, and the number of its shards, which are not looked at again.
        self._finished: Manifest | None = None
        self._n_finished = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, UserError):
                self.discard_if_empty()
        finally:
            self.close()

    @files.os_errors(RunError)
    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    @files.os_errors(RunError)
    def pending(self) -> tuple[ShardSpec, ...]:
        """Return the shards without a receipt, in corpus order; commits of worker processes count."""
        self._refresh()
        return tuple(shard for shard in self.open_shards if shard.index not in self._known)

    @property
    def open_shards(self) -> tuple[ShardSpec, ...]:
        """The shards of the plan without those of the finished store that an append begins with."""
        return self.plan.shards[self._n_finished :]

    @files.os_errors(RunError)
    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of the open shards that are done, in corpus order."""
        self._refresh()
        shards = self._open(self.plan)
        return tuple(self._known[shard.index].receipt for shard in shards if shard.index in self._known)

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Write a finished shard; see `commit_shard`."""
        return commit.commit_shard(self.root, self.whole, shard, result, self.lease)

    @files.os_errors(RunError)
    def withdraw(self, shards: Iterable[ShardSpec]) -> None:
        """Remove the receipts of shards, so that the next run repeats them."""
        for shard in shards:
            self._folder.remove(layout.receipt_path(shard.index))
            self._known.pop(shard.index, None)

    def keep_finished(self) -> int:
        """Trust the manifest of the store before an append, and return how many shards it lists; 0 without one."""
        if self.plan.appends and self._folder.info(layout.DAMAGED) is None:
            with contextlib.suppress(FileNotFoundError, StoreError):
                manifest = read_manifest(self._folder)
                if number_of(self.whole, manifest["plan_hash"]) is not None:
                    self._finished, self._n_finished = manifest, len(manifest["shards"])
        return self._n_finished

    def withdraw_manifest(self) -> None:
        """Remove the manifest if a shard that it lists must be repeated.

        Raises:
            RunError: The system refused.
        """
        if self._finished is not None:
            return
        finished = state_of(self.whole, opening.finished_hash(self._folder) or "")
        listed = {shard.index for shard in (finished or self.whole).shards or (layout.EMPTY_SHARD,)}
        if any(shard.index in listed for shard in self.pending()):
            self._folder.remove(layout.MANIFEST)

    @property
    def lease(self) -> Lease | None:
        """The lease that worker processes need to commit shards."""
        return self._folder.lease

    @property
    @files.os_errors(RunError)
    def is_complete(self) -> bool:
        """Whether every shard is done and the manifest matches."""
        if self._finished is not None:
            state = state_of(self.whole, self._finished["plan_hash"])
            return state is not None and number_of(state, self.plan.plan_hash) is not None
        try:
            return not self.pending() and self._folder.read(layout.MANIFEST) == self._manifest().encoded()
        except FileNotFoundError:
            return False

    @files.os_errors(RunError)
    def complete(self) -> None:
        """Write the manifest, unless it is already right.

        Raises:
            RunError: Shards are missing, the system refused a write, or another run has taken the store over.
        """
        if not self.plan.shards:
            self.commit(layout.EMPTY_SHARD, commit.empty_result(self.plan))
        missing = self.pending()
        if missing:
            named = ", ".join(shard.name for shard in missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise RunError(f"{self.root}: {len(missing)} shards are not done ({named}); run the same command again")
        self._folder.clean_tmp()
        if not self.is_complete:
            with files.write_errors(self.root / layout.MANIFEST):
                self._finished = self._manifest()
                write_manifest(self._folder, self._finished)

    @files.os_errors(RunError)
    def keep_ids(self, state: Plan, ids: IdDigests) -> None:
        """Keep the ids of the store as it is in a state of the plan, so that the next append finds them at once."""
        idfile.write_ids(self._folder, state.plan_hash, ids)

    @files.os_errors(RunError)
    def discard_if_empty(self) -> bool:
        """Remove what opening the store created, if nothing is committed; return whether it was removed.

        Of a store with appends, only the last append is removed.
        """
        if self.whole.appends:
            return self._discard_append()
        if self._folder.listing().owned():
            return False
        self._folder.discard(tuple(self.plan.schemas))
        return True

    def _discard_append(self) -> bool:
        last = self.whole.appends[-1]
        there = self._folder.listing().owned()
        names = [f for shard in self.whole.shards[last.first_shard :] for f in layout.shard_files(shard.index)]
        before = state_of(self.whole, last.before)
        if before is None or not {*there}.isdisjoint(names) or opening.finished_hash(self._folder) != last.before:
            return False
        planfile.write_plan(self._folder, before)
        return True

    def _manifest(self) -> Manifest:
        """Return the manifest of the last state of the plan that is whole."""
        # A resumed run may describe itself differently (a newer library); the manifest follows the stored plan. That of
        # a million files takes 20 seconds and 2 GB to read: it is not read where this run has written it.
        is_own = self.is_new and self._folder.info(layout.PLAN) is not None
        stored = self.whole if is_own else planfile.read_plan(self._folder)
        if stored is None:
            raise StoreError(f"{self.root / layout.PLAN}: missing; run the same command again")
        for state in later_first(stored):
            shards = [shard.index for shard in self._open(state)]
            if self._known.keys() >= {*shards}:
                return build_manifest(state, [self._known[index] for index in shards], self._finished)
        raise RunError(f"{self.root}: shards are missing; run the same command again")

    def _open(self, plan: Plan) -> tuple[ShardSpec, ...]:
        """Return the shards of a plan whose receipts count; a plan without shards has an empty one."""
        return plan.shards[self._n_finished :] if plan.shards else (layout.EMPTY_SHARD,)

    def _refresh(self) -> None:
        unknown = [shard.index for shard in self._open(self.whole) if shard.index not in self._known]
        for stored in receipts.read_receipts(self._folder, unknown):
            # The last worker of a killed run may have committed after the folder was repaired.
            if receipts.fault_of(stored, self.whole) is None:
                self._known[stored.receipt.shard] = stored
