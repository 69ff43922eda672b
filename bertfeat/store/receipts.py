"""Receipts: one small sealed JSON file per shard, the proof that its parts are whole.

Functions that write raise RunError if the system refuses.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from bertfeat.durable import files
from bertfeat.durable.decoding import decode
from bertfeat.errors import StoreError
from bertfeat.records import BadRow, PartInfo, Plan, Receipt
from bertfeat.storage import AnyPath
from bertfeat.store import codec, layout
from bertfeat.store.folder import Folder, Listing
from bertfeat.store.openfolder import folder_at
from bertfeat.store.planstates import hash_of
from bertfeat.store.runs import check_runs
from bertfeat.store.vectorlayout import VectorLayout

# The place of a receipt holds something that is not a file: a folder, a link, a pipe.
_NO_FILE = {errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR}


@dataclass(frozen=True, slots=True)
class QuarantineInfo:
    """The file of a shard's set-aside rows, as its receipt and the manifest list it."""

    path: str
    n_rows: int
    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A receipt as it is stored.

    `stamps` hold the modification time (ns) of each part when it was last known to be whole; in an object store, a
    number made from its entity tag. While the stamp is the same, a rerun need not read the part again. Stamps are not
    reproducible.
    """

    receipt: Receipt
    quarantine: QuarantineInfo | None
    stamps: Mapping[str, Any]

    def listed(self) -> list[tuple[str, int, str]]:
        """Return path, size and digest of each file of the shard."""
        found: list[PartInfo | QuarantineInfo] = [*self.receipt.parts]
        if self.quarantine is not None:
            found.append(self.quarantine)
        return [(file.path, file.n_bytes, file.digest) for file in found]


def write_quarantine(folder: Folder, shard: int, rows: Sequence[BadRow]) -> QuarantineInfo | None:
    """Write the rows that a shard set aside, one JSON object per line, raw bytes in base64; None without rows."""
    name = layout.quarantine_path(shard)
    if not rows:
        folder.remove(name)
        return None
    data = "".join(codec.canonical_json(_bad_row(row)) + "\n" for row in rows).encode()
    folder.commit(name, data, "quarantine")
    return QuarantineInfo(name, len(rows), len(data), xxhash.xxh3_128_hexdigest(data))


def _bad_row(row: BadRow) -> dict[str, Any]:
    return {**asdict(row), "raw": None if row.raw is None else base64.b64encode(row.raw).decode()}


def read_quarantine(folder: Folder, stored: StoredReceipt) -> list[BadRow]:
    """Return the rows that a shard set aside.

    Raises:
        StoreError: Their file is missing or damaged.
    """
    if stored.quarantine is None:
        return []
    name = layout.quarantine_path(stored.receipt.shard)
    path = folder.path / name
    try:
        data = folder.read(name, follow_links=True)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file; copy the store with its {layout.PRIVATE} folder") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}; run bertfeat verify") from error
    if xxhash.xxh3_128_hexdigest(data) != stored.quarantine.digest:
        raise StoreError(f"{path}: its bytes are not those that were written; run bertfeat verify")
    try:
        return [decode(BadRow, json.loads(line)) for line in data.splitlines()]
    except ValueError as error:
        raise StoreError(f"{path}: {error}; run bertfeat verify") from error


def commit_receipt(folder: Folder, receipt: Receipt, quarantine: QuarantineInfo | None) -> Receipt:
    """Write the receipt of a finished shard, and return the one that is then stored.

    Raises:
        RunError: The system refused a write, or another run has written a different receipt.
    """

    def says_the_same(data: bytes) -> bool:
        try:
            other = _from_json(data)
        except ValueError:
            return False
        return (other.receipt.plan_hash, other.receipt.parts) == (receipt.plan_hash, receipt.parts)

    data = _stamped(folder, receipt, quarantine)
    return _from_json(folder.commit(layout.receipt_path(receipt.shard), data, "receipt", says_the_same)).receipt


def restamp(folder: Folder, stored: StoredReceipt) -> None:
    """Rewrite a receipt with the present stamps of its parts."""
    data = _stamped(folder, stored.receipt, stored.quarantine)
    folder.write(layout.receipt_path(stored.receipt.shard), data, "receipt")


def _stamped(folder: Folder, receipt: Receipt, quarantine: QuarantineInfo | None) -> bytes:
    """Return the file of a receipt with the present stamps of its parts."""
    stamps = {}
    for part in receipt.parts:
        with files.write_errors(folder.path / part.path):
            info = folder.info(part.path)
            if info is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            stamps[part.path] = info.stamp
    kept = None if quarantine is None else asdict(quarantine)
    return codec.seal({"receipt": codec.receipt_to_json(receipt), "quarantine": kept, "stamps": stamps})


def read_receipt(place: AnyPath | Folder, shard: int) -> StoredReceipt:
    """Return a shard's receipt.

    Raises:
        FileNotFoundError: There is no receipt.
        ValueError: The receipt is damaged, or another shard's.
        OSError: The receipt cannot be read.
    """
    return _receipt_of(shard, folder_at(place).read(layout.receipt_path(shard)))


def read_receipts(folder: Folder, shards: Iterable[int]) -> Iterator[StoredReceipt]:
    """Yield the receipts of some shards, in order, without those that are missing or damaged.

    Raises:
        OSError: An existing receipt cannot be read.
    """
    numbers = {layout.receipt_path(shard): shard for shard in shards}
    for name, data in folder.read_each(numbers):
        if isinstance(data, OSError):
            if data.errno in _NO_FILE:
                continue
            raise data
        with contextlib.suppress(ValueError):
            yield _receipt_of(numbers[name], data)


def _receipt_of(shard: int, data: bytes) -> StoredReceipt:
    stored = _from_json(data)
    if stored.receipt.shard != shard:
        raise ValueError(f"the receipt of shard {stored.receipt.shard}")
    return stored


def _from_json(data: bytes) -> StoredReceipt:
    stored = decode(StoredReceipt, codec.unseal(data))
    check_paths(stored)
    return stored


def check_paths(stored: StoredReceipt) -> None:
    """Raise ValueError if a path is not that of a shard's file, which follows from level and shard."""
    shard = stored.receipt.shard
    found = {part.path: layout.part_path(part.level, shard) for part in stored.receipt.parts}
    if stored.quarantine is not None:
        found[stored.quarantine.path] = layout.quarantine_path(shard)
    for path, expected in found.items():
        if path != expected:
            raise ValueError(f"shard {shard} lists {path!r}, not {expected}")


def fault_of(stored: StoredReceipt, plan: Plan) -> str | None:
    """Return why a receipt does not belong to a plan; None if it does."""
    receipt = stored.receipt
    if receipt.plan_hash != (wanted := hash_of(plan, receipt.shard)):
        return f"made with other settings (plan {receipt.plan_hash[:12]}, not {wanted[:12]})"
    expected = [layout.part_path(level, receipt.shard) for level in plan.schemas]
    if [part.path for part in receipt.parts] != expected:
        return f"lists {', '.join(part.path for part in receipt.parts) or 'no part'}, not {', '.join(expected)}"
    try:
        for part in receipt.parts:
            check_runs(part, plan.schemas[part.level].features, VectorLayout.of(plan))
    except ValueError as error:
        return str(error)
    return None


def has_files(listing: Listing, stored: StoredReceipt) -> bool:
    """Return whether the files of a receipt exist with the right size, without reading them."""
    return all(_is_file_of(listing, path, n_bytes) for path, n_bytes, _ in stored.listed())


def _is_file_of(listing: Listing, name: str, n_bytes: int) -> bool:
    try:
        info = listing.info(name)
    except NotADirectoryError:
        return False
    return info is not None and info.oddity is None and info.n_bytes == n_bytes


def is_untouched(listing: Listing, stored: StoredReceipt) -> bool:
    """Return whether every part still has the stamp in the receipt."""
    infos = ((listing.info(part.path), stored.stamps.get(part.path)) for part in stored.receipt.parts)
    return all(info is not None and info.stamp == stamp for info, stamp in infos)


def is_sound(folder: Folder, stored: StoredReceipt) -> bool:
    """Return whether every file of a receipt has its digest; reads all of them."""
    return all(folder.is_whole(*file) for file in stored.listed())


def finished(folder: Folder, plan: Plan) -> list[StoredReceipt]:
    """Return the receipts of a plan's shards whose files exist, in corpus order, without damaged ones."""
    found = read_receipts(folder, [shard.index for shard in plan.shards])
    listing = folder.listing()
    return [stored for stored in found if fault_of(stored, plan) is None and has_files(listing, stored)]
