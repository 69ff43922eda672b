"""What an output folder holds before a run, and what a broken-off run left there to be put right."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path

from bertfeat.config import Level
from bertfeat.errors import StoreError
from bertfeat.records import Plan
from bertfeat.store import codec, files, layout, planfile, receipts
from bertfeat.store.manifest import read_manifest, receipts_in
from bertfeat.store.receipts import StoredReceipt

_MAX_NAMED_FILES = 5

Progress = Callable[[int, int], None]


class Found(StrEnum):
    """What stands at the place of an output."""

    NOTHING = "nothing"
    EMPTY = "empty"
    STORE = "store"


def look(root: Path, plan: Plan, *, overwrite: bool) -> Found:
    """Say what stands at `root`, refusing what a run must not touch; writes nothing.

    Raises:
        PlanMismatch: A store of another plan stands there.
        StoreError: Something else does, or a symbolic link in the output's place.
    """
    if not os.path.lexists(root):
        return Found.NOTHING
    if root.is_symlink() or not root.is_dir():
        raise StoreError(f"{root}: not a folder ({files.kind_of(root)}); choose another --output")
    if not any(root.iterdir()):
        return Found.EMPTY
    foreign = layout.foreign_entries(root)
    links = [name for name in foreign if (root / name).is_symlink()]
    if links:
        raise StoreError(f"{root}: holds symbolic links ({_listed(links)}); remove them or choose another --output")
    if not (root / layout.PRIVATE).is_dir() or (foreign and overwrite):
        what = "not a bertfeat store and not empty" if not overwrite else "holds files that are no part of a store"
        names = foreign or [file.name for file in root.iterdir()]
        raise StoreError(f"{root}: {what} (holds {_listed(names)}); choose another --output")
    if not overwrite:
        _check_plan(root, plan)
    return Found.STORE


def _listed(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_MAX_NAMED_FILES])
    return shown + (", ..." if len(names) > _MAX_NAMED_FILES else "")


def _check_plan(root: Path, plan: Plan) -> None:
    try:
        stored = planfile.read_plan(root)
    except planfile.PlanDamaged:
        stored = None
    if stored is not None:
        planfile.check_same_plan(root, stored, plan)
        return
    # Without its plan a store may still be known by what its receipts and manifest say; parts alone are not enough.
    known = _known_hashes(root)
    if known == {plan.plan_hash} or (not known and not layout.owned_files(root)):
        return
    raise StoreError(
        f"{root}: {layout.PLAN} is missing or damaged, and what stands there is not known to be of this plan; "
        "use another folder or --overwrite"
    )


def _known_hashes(root: Path) -> set[str]:
    found = set()
    with contextlib.suppress(FileNotFoundError, StoreError):
        found.add(read_manifest(root)["plan_hash"])
    for name in layout.owned_files(root):
        with contextlib.suppress(OSError, ValueError):
            if name.startswith(layout.RECEIPTS):
                found.add(receipts.read_receipt(root, int(Path(name).stem)).receipt.plan_hash)
    return found


def clear(root: Path) -> None:
    """Remove everything of a store but its lock, in an order that leaves a resumable store at every moment.

    Raises:
        RunError: The system refused.
    """
    clean_tmp(root)
    with files.write_errors(root, layout.PRIVATE):
        files.unlink_durably(root / layout.MANIFEST)
        # The private folder sorts before the levels: receipts go before the parts that they vouch for.
        for name in layout.owned_files(root):
            (root / name).unlink()
        files.unlink_durably(root / layout.DAMAGED)
        files.unlink_durably(root / layout.PLAN)
        for level in Level:
            if (root / level).is_dir():
                (root / level).rmdir()


def clean_tmp(root: Path) -> None:
    """Remove the unfinished files of processes that died."""
    if not (root / layout.TMP).is_dir():
        return
    with files.write_errors(root, layout.TMP):
        for file in (root / layout.TMP).iterdir():
            file.unlink(missing_ok=True)


def recover(root: Path, plan: Plan, *, recheck: bool, progress: Progress | None) -> None:
    """Put right what broken-off runs and damage left, so that every receipt that stands can be trusted.

    Unfinished files and parts of no planned shard go. A receipt that is damaged, of another plan, or whose files are
    not what it says goes, and its shard is done again; a part is only read again when its modification time is not
    the one that the receipt knows, or with `recheck`. A lost receipt of a complete store is made again from the
    manifest when the parts have the digests that stand there; without a manifest nothing vouches for the parts and
    the shard is done again (its identical parts are then kept). Shards that `verify` has marked are done again.

    Raises:
        RunError: The system refused a write.
    """
    clean_tmp(root)
    indices = [shard.index for shard in plan.shards] or [layout.EMPTY_SHARD.index]
    _drop_strays(root, plan, set(indices))
    recheck = _withdraw_marked(root) or recheck
    listed = _manifest_receipts(root, plan)
    for n_done, index in enumerate(indices, start=1):
        _recover_shard(root, plan, index, listed.get(index), recheck=recheck)
        if progress is not None:
            progress(n_done, len(indices))


def mark_damaged(root: Path, shards: Sequence[int]) -> None:
    """Have the next run do these shards again, whatever their files look like then; receipts and manifest stay.

    Raises:
        RunError: The system refused a write.
    """
    files.write_atomic(root, layout.DAMAGED, codec.seal({"shards": list(shards)}), "damaged")


def _withdraw_marked(root: Path) -> bool:
    """Take back the receipts of the shards that are marked; return whether the marks themselves are damaged."""
    try:
        shards = [int(shard) for shard in codec.unseal(files.read_small(root / layout.DAMAGED))["shards"]]
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        shards = []
    with files.write_errors(root, layout.DAMAGED):
        # The manifest would vouch for them once more.
        files.unlink_durably(root / layout.MANIFEST)
        for shard in shards:
            withdraw_receipt(root, shard)
        files.unlink_durably(root / layout.DAMAGED)
    return not shards


def _drop_strays(root: Path, plan: Plan, indices: set[int]) -> None:
    expected = {layout.part_path(level, index) for level in plan.schemas for index in indices}
    expected |= {layout.receipt_path(index) for index in indices}
    expected |= {layout.quarantine_path(index) for index in indices}
    for name in layout.owned_files(root):
        if name not in expected:
            with files.write_errors(root, name):
                files.unlink_durably(root / name)


def _manifest_receipts(root: Path, plan: Plan) -> dict[int, StoredReceipt]:
    try:
        listed = receipts_in(read_manifest(root))
    except (FileNotFoundError, StoreError, KeyError, TypeError, ValueError):
        return {}
    return {stored.receipt.shard: stored for stored in listed if receipts.fault_of(stored, plan) is None}


def _recover_shard(root: Path, plan: Plan, index: int, listed: StoredReceipt | None, *, recheck: bool) -> None:
    stored = listed
    with contextlib.suppress(OSError, ValueError):
        stored = receipts.read_receipt(root, index)
    if stored is None or receipts.fault_of(stored, plan) is not None or not receipts.stands(root, stored):
        withdraw_receipt(root, index)
        return
    is_untouched = receipts.is_untouched(root, stored)
    if is_untouched and not recheck:
        return
    if not receipts.is_sound(root, stored):
        withdraw_receipt(root, index)
    elif not is_untouched:
        receipts.write_receipt(root, stored.receipt, stored.quarantine)


def withdraw_receipt(root: Path, shard: int) -> None:
    """Take a shard's receipt away, so that the next run does the shard again.

    Raises:
        RunError: The system refused.
    """
    name = layout.receipt_path(shard)
    with files.write_errors(root, name):
        files.unlink_durably(root / name)
