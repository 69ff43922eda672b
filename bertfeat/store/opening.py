"""Checks of an output folder before a run, and repair of what an interrupted run left there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import PurePosixPath

from bertfeat.durable import files
from bertfeat.durable.decoding import decode
from bertfeat.durable.placecheck import listed
from bertfeat.errors import StoreError
from bertfeat.records import Plan
from bertfeat.store import codec, layout, planfile, receipts
from bertfeat.store.folder import Folder, Listing
from bertfeat.store.manifest import read_manifest
from bertfeat.store.planstates import number_of, states
from bertfeat.store.receipts import StoredReceipt


def look(folder: Folder, *, overwrite: bool) -> bool:
    """Return whether there is a store at an output's place, and refuse other files; writes nothing.

    Raises:
        StoreError: The place holds something else, or symbolic links.
    """
    there = folder.contents()
    if not there.entries:
        return False
    if there.links:
        raise StoreError(
            f"{folder.path}: holds symbolic links ({listed(there.links)}); remove them or choose another `output`"
        )
    if not there.has_private or (there.foreign and overwrite):
        names = listed(there.foreign or there.entries)
        raise StoreError(f"{folder.path}: holds files that are not part of a store ({names}); choose another `output`")
    return True


def whole_plan(folder: Folder, plan: Plan) -> Plan:
    """Return the plan of all that a folder may hold: `plan`, or the stored plan if that continues it."""
    with contextlib.suppress(planfile.PlanDamaged):
        stored = planfile.read_plan(folder)
        if stored is not None and number_of(stored, plan.plan_hash) is not None:
            return stored
    return plan


def check_plan(folder: Folder, plan: Plan, *, drop_unfinished: bool) -> None:
    """Refuse a store that was made with other settings or inputs.

    Raises:
        PlanMismatch: The place holds such a store.
        StoreError: Another process has begun an append, or nothing shows whose store it is.
    """
    try:
        stored = planfile.read_plan(folder)
    except planfile.PlanDamaged:
        stored = None
    if stored is not None:
        if drop_unfinished and finished_hash(folder) in {*states(stored)} & {*states(plan)}:
            # What has finished stays.
            return
        if number_of(stored, plan.plan_hash) is not None or number_of(plan, stored.plan_hash) is not None:
            return
        if plan.appends and stored.appends:
            raise StoreError(f"{folder.path}: another process has begun an append; run the same command again after it")
        planfile.check_same_plan(folder.path, stored, plan)
        return
    # Without a plan, receipts and manifest may still show the plan of a store; parts alone do not.
    owned = folder.listing().owned()
    known = _known_hashes(folder, owned)
    if known == {plan.plan_hash} or not (known or owned):
        return
    raise StoreError(
        f"{folder.path}: {layout.PLAN} is missing or damaged, and no receipt or manifest shows that the files are of "
        "this run; use another folder or `overwrite`"
    )


def finished_hash(folder: Folder) -> str | None:
    """Return the plan hash of the manifest; None if there is no usable manifest."""
    with contextlib.suppress(FileNotFoundError, StoreError):
        found: str = read_manifest(folder)["plan_hash"]
        return found
    return None


def _known_hashes(folder: Folder, owned: Sequence[str]) -> set[str]:
    finished = finished_hash(folder)
    found = set() if finished is None else {finished}
    shards = [int(PurePosixPath(name).stem) for name in owned if name.startswith(layout.RECEIPTS)]
    return found | {stored.receipt.plan_hash for stored in receipts.read_receipts(folder, shards)}


def clear(folder: Folder) -> None:
    """Remove everything of a store except its lock, in an order that always leaves a store that can be resumed.

    Raises:
        RunError: The system refused.
    """
    folder.clean_tmp()
    with files.write_errors(folder.path / layout.PRIVATE):
        folder.remove(layout.MANIFEST)
        folder.remove_owned()
        folder.remove(layout.DAMAGED)
        folder.remove(layout.IDS)
        folder.remove(layout.PLAN)


def recover(folder: Folder, plan: Plan, *, recheck: bool, first: int = 0, n_planned: int | None = None) -> None:
    """Repair what interrupted runs and damage left, so that every remaining receipt can be trusted.

    - Unfinished files and parts of unplanned shards are removed.
    - A receipt that is damaged, has other settings, or contradicted by its files is removed, and its shard repeated. A
      part is read again only if its modification time differs from that in the receipt, or with `recheck`.
    - A lost receipt of a complete store is recreated from the manifest if the parts have the digests listed there.
      Without a manifest the shard is repeated. Its identical parts are then kept, unless commits in this folder may
      not replace parts: there they are removed now.
    - Shards that `verify` has marked are repeated.
    - Only the shards from `first` to `n_planned` (by default all) are looked at; others, of appends, stay as they are.

    Raises:
        RunError: The system refused a write.
    """
    folder.clean_tmp()
    indices = [shard.index for shard in plan.shards] or [layout.EMPTY_SHARD.index]
    listing = folder.listing()
    _drop_strays(folder, listing, plan, set(indices))
    end = max(len(plan.shards) if n_planned is None else n_planned, 1)
    recheck = _withdraw_marked(folder, end) or recheck
    indices = [index for index in indices if first <= index < end]
    known = _manifest_receipts(folder, plan) if not first else {}
    known |= {stored.receipt.shard: stored for stored in receipts.read_receipts(folder, indices)}
    for index in indices:
        _recover_shard(folder, listing, plan, index, known.get(index), recheck=recheck)


def marked_shards(folder: Folder) -> tuple[int, ...] | None:
    """Return the shards that `verify` has marked as damaged; None if the file of the marks is damaged."""
    try:
        return decode(tuple[int, ...], codec.unseal(folder.read(layout.DAMAGED)).get("shards"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError):
        return None


def _withdraw_marked(folder: Folder, n_planned: int) -> bool:
    """Remove the receipts of the marked shards below a number; return whether the file of the marks is damaged."""
    marked = marked_shards(folder)
    shards = [shard for shard in marked or () if shard < n_planned]
    if marked is not None and not shards:
        return False
    left = [shard for shard in marked or () if shard not in shards]
    with files.write_errors(folder.path / layout.DAMAGED):
        # Their receipts would be recreated from the manifest.
        folder.remove(layout.MANIFEST)
        for shard in shards:
            folder.remove(layout.receipt_path(shard))
        if left:
            folder.write(layout.DAMAGED, codec.seal({"shards": left}), "damaged")
        else:
            folder.remove(layout.DAMAGED)
    return marked is None


def _drop_strays(folder: Folder, listing: Listing, plan: Plan, indices: set[int]) -> None:
    expected = {layout.part_path(level, index) for level in plan.schemas for index in indices}
    expected |= {layout.receipt_path(index) for index in indices}
    expected |= {layout.quarantine_path(index) for index in indices}
    for name in listing.owned():
        if name not in expected:
            with files.write_errors(folder.path / name):
                folder.remove(name)


def _manifest_receipts(folder: Folder, plan: Plan) -> dict[int, StoredReceipt]:
    try:
        listed = read_manifest(folder).receipts
    except (FileNotFoundError, StoreError):
        return {}
    return {stored.receipt.shard: stored for stored in listed if receipts.fault_of(stored, plan) is None}


def _recover_shard(
    folder: Folder, listing: Listing, plan: Plan, index: int, stored: StoredReceipt | None, *, recheck: bool
) -> None:
    if stored is None or receipts.fault_of(stored, plan) is not None or not receipts.has_files(listing, stored):
        _withdraw(folder, listing, plan, index)
        return
    is_untouched = receipts.is_untouched(listing, stored)
    if is_untouched and not recheck:
        return
    if not receipts.is_sound(folder, stored):
        _withdraw(folder, listing, plan, index)
    elif not is_untouched:
        receipts.restamp(folder, stored)


def _withdraw(folder: Folder, listing: Listing, plan: Plan, shard: int) -> None:
    """Remove a shard's receipt, so that the shard is repeated, and files that a commit could not replace."""
    names = [layout.receipt_path(shard)]
    if not folder.replaces_parts:
        names += [layout.part_path(level, shard) for level in plan.schemas] + [layout.quarantine_path(shard)]
        names = [name for name in names if listing.info(name) is not None]
    for name in names:
        with files.write_errors(folder.path / name):
            folder.remove(name)
