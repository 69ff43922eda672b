"""What an output folder holds before a run, and what a broken-off run left there to be put right."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from bertfeat.durable import files
from bertfeat.durable.decoding import decode
from bertfeat.durable.placecheck import listed
from bertfeat.errors import StoreError
from bertfeat.records import Plan
from bertfeat.store import codec, layout, planfile, receipts
from bertfeat.store.folder import Folder, Found, Listing
from bertfeat.store.manifest import read_manifest, receipts_in
from bertfeat.store.receipts import StoredReceipt


def look(folder: Folder, plan: Plan, *, overwrite: bool) -> Found:
    """Say what stands at an output's place, refusing what a run must not touch; writes nothing.

    Raises:
        PlanMismatch: A store of another plan stands there.
        StoreError: Something else does, or a symbolic link in the output's place.
    """
    there = folder.contents()
    if there.found is not Found.STORE:
        return there.found
    if there.links:
        raise StoreError(
            f"{folder.path}: holds symbolic links ({listed(there.links)}); remove them or choose another --output"
        )
    if not there.has_private or (there.foreign and overwrite):
        names = listed(there.foreign or there.entries)
        raise StoreError(f"{folder.path}: holds files that are not part of a store ({names}); choose another --output")
    if not overwrite:
        _check_plan(folder, plan)
    return Found.STORE


def _check_plan(folder: Folder, plan: Plan) -> None:
    try:
        stored = planfile.read_plan(folder)
    except planfile.PlanDamaged:
        stored = None
    if stored is not None:
        planfile.check_same_plan(folder.path, stored, plan)
        return
    # Without its plan a store may still be known by what its receipts and manifest say; parts alone are not enough.
    owned = folder.listing().owned()
    known = _known_hashes(folder, owned)
    if known == {plan.plan_hash} or (not known and not owned):
        return
    raise StoreError(
        f"{folder.path}: {layout.PLAN} is missing or damaged, and what stands there is not known to be of this plan; "
        "use another folder or --overwrite"
    )


def _known_hashes(folder: Folder, owned: Sequence[str]) -> set[str]:
    found = set()
    with contextlib.suppress(FileNotFoundError, StoreError):
        found.add(read_manifest(folder)["plan_hash"])
    shards = [layout.shard_of(name) for name in owned if name.startswith(layout.RECEIPTS)]
    return found | {stored.receipt.plan_hash for stored in receipts.read_receipts(folder, shards)}


def clear(folder: Folder) -> None:
    """Remove everything of a store but its lock, in an order that leaves a resumable store at every moment.

    Raises:
        RunError: The system refused.
    """
    folder.clean_tmp()
    with files.write_errors(folder.path / layout.PRIVATE):
        folder.remove(layout.MANIFEST)
        # Receipts, which lie in the private folder, go before the parts that they vouch for.
        folder.remove_each(folder.listing().owned())
        folder.remove(layout.DAMAGED)
        folder.remove(layout.PLAN)
        folder.remove_levels()


def recover(folder: Folder, plan: Plan, *, recheck: bool) -> None:
    """Put right what broken-off runs and damage left, so that every receipt that stands can be trusted.

    Unfinished files and parts of no planned shard go. A receipt that is damaged, of another plan, or whose files are
    not what it says goes, and its shard is done again; a part is only read again when its modification time is not
    the one that the receipt knows, or with `recheck`. A lost receipt of a complete store is made again from the
    manifest when the parts have the digests that stand there; without a manifest nothing vouches for the parts and
    the shard is done again (its identical parts are then kept, unless the folder does not let a commit replace others:
    there all of them go now). Shards that `verify` has marked are done again.

    Raises:
        RunError: The system refused a write.
    """
    folder.clean_tmp()
    indices = [shard.index for shard in plan.shards] or [layout.EMPTY_SHARD.index]
    listing = folder.listing()
    _drop_strays(folder, listing, plan, set(indices))
    recheck = _withdraw_marked(folder) or recheck
    known = _manifest_receipts(folder, plan)
    known |= {stored.receipt.shard: stored for stored in receipts.read_receipts(folder, indices)}
    for index in indices:
        _recover_shard(folder, listing, plan, index, known.get(index), recheck=recheck)


def mark_damaged(folder: Folder, shards: Sequence[int]) -> None:
    """Have the next run do these shards again, whatever their files look like then; receipts and manifest stay.

    Raises:
        RunError: The system refused a write.
    """
    folder.write(layout.DAMAGED, codec.seal({"shards": list(shards)}), "damaged")


def _withdraw_marked(folder: Folder) -> bool:
    """Take back the receipts of the shards that are marked; return whether the marks themselves are damaged."""
    try:
        shards = decode(tuple[int, ...], codec.unseal(folder.read(layout.DAMAGED)).get("shards"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        shards = ()
    with files.write_errors(folder.path / layout.DAMAGED):
        # The manifest would vouch for them once more.
        folder.remove(layout.MANIFEST)
        for shard in shards:
            folder.remove(layout.receipt_path(shard))
        folder.remove(layout.DAMAGED)
    return not shards


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
        listed = receipts_in(read_manifest(folder))
    except (FileNotFoundError, StoreError, ValueError):
        return {}
    return {stored.receipt.shard: stored for stored in listed if receipts.fault_of(stored, plan) is None}


def _recover_shard(
    folder: Folder, listing: Listing, plan: Plan, index: int, stored: StoredReceipt | None, *, recheck: bool
) -> None:
    if stored is None or receipts.fault_of(stored, plan) is not None or not receipts.stands(listing, stored):
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
    """Take a shard's receipt away, so that it is done again, and what a commit could not replace."""
    names = [layout.receipt_path(shard)]
    if not folder.replaces_parts:
        names += [layout.part_path(level, shard) for level in plan.schemas] + [layout.quarantine_path(shard)]
        names = [name for name in names if listing.info(name) is not None]
    for name in names:
        with files.write_errors(folder.path / name):
            folder.remove(name)
