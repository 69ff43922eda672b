"""A store open for writing: which shards are still to be done, commits, and the manifest at the end."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

from bertfeat.errors import RunError, StoreError, UserError
from bertfeat.records import Plan, Receipt, ShardResult, ShardSpec
from bertfeat.store import commit, files, layout, opening, planfile, receipts
from bertfeat.store.lock import StoreLock
from bertfeat.store.manifest import build_manifest
from bertfeat.store.opening import Found, Progress
from bertfeat.store.receipts import StoredReceipt


def open_for_writing(
    path: str | Path,
    plan: Plan,
    *,
    overwrite: bool = False,
    recheck: bool = False,
    progress: Progress | None = None,
) -> StoreWriter:
    """Open a store for a plan: a new one, or one of the same plan to go on with.

    Args:
        path: The store's folder; missing parents are created.
        plan: What the store is made from.
        overwrite: Replace a store that stands there; files that are no part of a store are never deleted.
        recheck: Read every part again, also those whose modification time has not changed.
        progress: Called with (shards looked at, shards) while what stands there is checked.

    Raises:
        PlanMismatch: A store of another plan stands there; nothing was written.
        StoreError: Something else stands there, or another process is writing; nothing was written.
        RunError: The system refused a write.
    """
    root = Path(path)
    commit.check_schemas(plan)
    opening.look(root, plan, overwrite=overwrite)
    created = _make_root(root)
    try:
        return _open_locked(root, plan, created, overwrite=overwrite, recheck=recheck, progress=progress)
    except BaseException:
        _remove_empty([root / layout.PRIVATE, *created])
        raise


def _open_locked(
    root: Path, plan: Plan, created: list[Path], *, overwrite: bool, recheck: bool, progress: Progress | None
) -> StoreWriter:
    files.make_folder(root / layout.PRIVATE)
    lock = StoreLock(root)
    writer = StoreWriter(root, plan, lock, created)
    try:
        # Only now can nobody else change what stands there.
        if opening.look(root, plan, overwrite=overwrite) is Found.STORE and overwrite:
            opening.clear(root)
        for name in layout.folders(tuple(plan.schemas)):
            files.make_folder(root / name)
        _settle_plan(root, plan)
        opening.recover(root, plan, recheck=recheck, progress=progress)
        if writer.pending():
            files.unlink_durably(root / layout.MANIFEST)
    except BaseException:
        try:
            writer.discard_if_empty()
        finally:
            writer.close()
        raise
    return writer


def _settle_plan(root: Path, plan: Plan) -> None:
    try:
        if planfile.read_plan(root) is not None:
            return
    except planfile.PlanDamaged:
        pass
    planfile.write_plan(root, plan)


def _make_root(root: Path) -> list[Path]:
    """Create the store's folder and its missing parents; return what was created, innermost first."""
    missing = [root, *root.parents]
    missing = missing[: next((i for i, folder in enumerate(missing) if folder.exists()), len(missing))]
    created: list[Path] = []
    for folder in reversed(missing):
        if files.make_folder(folder):
            created.insert(0, folder)
    return created


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


class StoreWriter:
    """A store that this process has locked for writing; made by `open_for_writing`.

    As a context manager it gives the lock back at the end; when the block raises a `UserError` before anything was
    committed, it leaves nothing behind.
    """

    def __init__(self, root: Path, plan: Plan, lock: StoreLock, created: list[Path]) -> None:
        self.root = root
        self.plan = plan
        self._lock = lock
        self._created = created
        self._known: dict[int, StoredReceipt] = {}

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

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def pending(self) -> tuple[ShardSpec, ...]:
        """Return the shards that have no receipt yet, in corpus order; sees what worker processes committed."""
        self._refresh()
        return tuple(shard for shard in self.plan.shards if shard.index not in self._known)

    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of the shards that are done, in corpus order."""
        self._refresh()
        return tuple(self._known[index].receipt for index in sorted(self._known))

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Write a finished shard; see `commit_shard`."""
        return commit.commit_shard(self.root, self.plan, shard, result)

    @property
    def is_complete(self) -> bool:
        """Whether every shard is done and the manifest says so."""
        try:
            return not self.pending() and files.read_small(self.root / layout.MANIFEST) == self._manifest()
        except FileNotFoundError:
            return False

    def complete(self) -> None:
        """Write the manifest. Does nothing when it already stands.

        Raises:
            RunError: Shards are missing, or the system refused a write.
        """
        if not self.plan.shards:
            commit.commit_shard(self.root, self.plan, layout.EMPTY_SHARD, commit.empty_result(self.plan))
        missing = self.pending()
        if missing:
            named = ", ".join(shard.name for shard in missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise RunError(f"{self.root}: {len(missing)} shards are not done ({named}); run the same command again")
        opening.clean_tmp(self.root)
        if not self.is_complete:
            files.write_atomic(self.root, layout.MANIFEST, self._manifest(), "manifest")

    def discard_if_empty(self) -> bool:
        """Remove what opening the store created, when nothing is committed to it; return whether it was removed."""
        if layout.owned_files(self.root):
            return False
        folders = [self.root / name for name in reversed(layout.folders(tuple(self.plan.schemas)))]
        opening.clean_tmp(self.root)
        for name in (layout.MANIFEST, layout.PLAN, layout.LOCK):
            (self.root / name).unlink(missing_ok=True)
        _remove_empty([*folders, *self._created])
        return True

    def _manifest(self) -> bytes:
        # A resumed run may describe itself otherwise (a newer library); the manifest keeps to the plan on disk.
        stored = planfile.read_plan(self.root)
        if stored is None:
            raise StoreError(f"{self.root / layout.PLAN}: missing; run the same command again")
        return build_manifest(stored, [self._known[index] for index in sorted(self._known)])

    def _refresh(self) -> None:
        for shard in self.plan.shards or (layout.EMPTY_SHARD,):
            if shard.index in self._known:
                continue
            with contextlib.suppress(FileNotFoundError):
                stored = receipts.read_receipt(self.root, shard.index)
                # The last worker of a run that was killed may have lived a moment too long.
                if receipts.fault_of(stored, self.plan) is None:
                    self._known[shard.index] = stored
