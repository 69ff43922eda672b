"""Receipts: one small sealed JSON file per shard, the proof that its parts are whole; and its set-aside rows.

Functions that write raise RunError if the system refuses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence

import xxhash

from bertfeat.durable.records import decode, encode, seal, unseal
from bertfeat.errors import StoreError
from bertfeat.records import BadRow, Plan, QuarantineFile, Receipt, StoredShard
from bertfeat.store import layout
from bertfeat.store.folder import FileInfo, Folder, is_whole

# There is no receipt, or its place holds something that is not a file: a folder, a link, a pipe.
_NO_FILE = {errno.ENOENT, errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR}


def write_quarantine(folder: Folder, plan: Plan, shard: int, rows: Sequence[BadRow]) -> QuarantineFile | None:
    """Write the rows that a shard set aside, one JSON object per line, raw bytes in base64; None without rows."""
    if not rows:
        return None
    name = layout.quarantine_path(plan.plan_hash, shard)
    # JSON holds no paths that are not UTF-8.
    valid = (dataclasses.replace(row, path=row.path.encode(errors="backslashreplace").decode()) for row in rows)
    data = b"".join(encode(row) + b"\n" for row in valid)
    folder.write(name, data, "quarantine")
    return QuarantineFile(name, len(rows), len(data), xxhash.xxh3_128_hexdigest(data))


def read_quarantine(folder: Folder, shard: StoredShard) -> list[BadRow]:
    """Return the rows that a shard set aside."""
    if shard.quarantine is None:
        return []
    path = folder.path / shard.quarantine.path
    try:
        data = folder.read(shard.quarantine.path)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such file; copy the store with its {layout.PRIVATE} folder") from error
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}; run bertfeat verify") from error
    if xxhash.xxh3_128_hexdigest(data) != shard.quarantine.digest:
        raise StoreError(f"{path}: its bytes are not those that were written; run bertfeat verify")
    return [decode(BadRow, line) for line in data.splitlines()]


def write_receipt(folder: Folder, receipt: Receipt) -> None:
    """Write the receipt of a shard whose parts are safe."""
    folder.write(layout.receipt_path(receipt.plan_hash, receipt.shard), seal(receipt), "receipt")


def read_receipts(folder: Folder, places: Iterable[tuple[str, int]]) -> Iterator[Receipt]:
    """Yield the receipts of some shards, in order, without those that are missing or damaged.

    `places` has the hash of the plan, and the number of each shard.
    """
    wanted = {layout.receipt_path(*place): place for place in places}
    for name, data in folder.read_each(list(wanted)):
        if isinstance(data, OSError):
            if data.errno in _NO_FILE or isinstance(data, FileNotFoundError):
                continue
            raise data
        with contextlib.suppress(ValueError):
            receipt = unseal(Receipt, data)
            if (receipt.plan_hash, receipt.shard) == wanted[name]:
                yield receipt


def stored(receipt: StoredShard) -> StoredShard:
    """Return what the manifest lists of a receipt."""
    names = [field.name for field in dataclasses.fields(StoredShard)]
    return StoredShard(**{name: getattr(receipt, name) for name in names})


def receipt_of(shard: StoredShard) -> Receipt:
    """Return the receipt of a shard that a manifest lists, without seconds and times, which it does not keep."""
    return Receipt(**{field.name: getattr(shard, field.name) for field in dataclasses.fields(StoredShard)})


def belongs(shard: StoredShard, plan: Plan) -> bool:
    """Return whether the record of a shard is that of a plan, with its parts."""
    expected = [layout.part_path(level, shard.shard, plan.plan_hash) for level in plan.schemas]
    return shard.plan_hash == plan.plan_hash and [part.path for part in shard.parts] == expected


def has_files(there: Mapping[str, FileInfo], shard: StoredShard) -> bool:
    """Return whether the files of a shard exist with the right size, without reading them."""
    infos = ((there.get(file.path), file.n_bytes) for file in shard.files)
    return all(info is not None and info.oddity is None and info.n_bytes == n_bytes for info, n_bytes in infos)


def is_untouched(there: Mapping[str, FileInfo], shard: StoredShard) -> bool:
    """Return whether no file of a shard was written after its receipt, which is the last that a commit writes."""
    receipt = there.get(layout.receipt_path(shard.plan_hash, shard.shard))
    return receipt is not None and all(there[file.path].modified <= receipt.modified for file in shard.files)


def is_sound(folder: Folder, shard: StoredShard) -> bool:
    """Return whether every file of a shard has its digest; reads all of them."""
    return all(is_whole(folder, file) for file in shard.files)
