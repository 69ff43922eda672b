"""Receipts: one small sealed JSON a shard, the proof that its parts are whole."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfeat.records import BadRow, Plan, Receipt
from bertfeat.store import codec, files, layout
from bertfeat.store.parts import is_whole


@dataclass(frozen=True, slots=True)
class QuarantineInfo:
    """The file of a shard's set-aside rows, as its receipt and the manifest list it."""

    path: str
    n_rows: int
    n_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A receipt as it lies on disk.

    `stamps` hold the modification time (ns) that each part had when it was last known to be whole: while it stays,
    a rerun need not read the part again. They are no part of what is reproducible.
    """

    receipt: Receipt
    quarantine: QuarantineInfo | None
    stamps: Mapping[str, int]


def write_quarantine(root: Path, shard: int, rows: Sequence[BadRow]) -> QuarantineInfo | None:
    """Write the rows that a shard set aside, one JSON object a line, raw bytes in base64; None when there are none.

    Raises:
        RunError: The system refused a write.
    """
    name = layout.quarantine_path(shard)
    if not rows:
        files.unlink_durably(root / name)
        return None
    data = "".join(codec.canonical_json(_bad_row(row)) + "\n" for row in rows).encode()
    digest = files.write_atomic(root, name, data, "quarantine")
    return QuarantineInfo(name, len(rows), len(data), digest)


def _bad_row(row: BadRow) -> dict[str, Any]:
    raw = None if row.raw is None else base64.b64encode(row.raw).decode()
    return {"index": row.index, "path": row.path, "row": row.row, "reason": row.reason, "raw": raw}


def read_quarantine(path: Path) -> list[BadRow]:
    """Return the rows in a quarantine file.

    Raises:
        OSError: There is no such file.
        ValueError: It is damaged.
    """
    rows = []
    for line in files.read_small(path).splitlines():
        content = json.loads(line)
        raw = None if content["raw"] is None else base64.b64decode(content["raw"])
        rows.append(BadRow(content["index"], content["path"], content["row"], content["reason"], raw))
    return rows


def write_receipt(root: Path, receipt: Receipt, quarantine: QuarantineInfo | None) -> StoredReceipt:
    """Write a receipt, with the present modification times of its parts.

    Raises:
        RunError: The system refused a write.
    """
    name = layout.receipt_path(receipt.shard)
    with files.write_errors(root, name):
        stamps = {part.path: (root / part.path).lstat().st_mtime_ns for part in receipt.parts}
    stored = StoredReceipt(receipt, quarantine, stamps)
    files.write_atomic(root, name, codec.seal(_to_json(stored)), "receipt")
    return stored


def _to_json(stored: StoredReceipt) -> dict[str, Any]:
    return {
        "receipt": codec.receipt_to_json(stored.receipt),
        "quarantine": quarantine_to_json(stored.quarantine),
        "stamps": dict(stored.stamps),
    }


def quarantine_to_json(info: QuarantineInfo | None) -> dict[str, Any] | None:
    """Return a quarantine file's entry as plain JSON values."""
    if info is None:
        return None
    return {"path": info.path, "n_rows": info.n_rows, "n_bytes": info.n_bytes, "digest": info.digest}


def quarantine_from_json(content: Mapping[str, Any] | None) -> QuarantineInfo | None:
    """Return the entry that `quarantine_to_json` made plain."""
    return None if content is None else QuarantineInfo(**content)


def read_receipt(root: Path, shard: int) -> StoredReceipt:
    """Return a shard's receipt.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, or another shard's.
        OSError: It cannot be read.
    """
    content = codec.unseal(files.read_small(root / layout.receipt_path(shard)))
    try:
        receipt = codec.receipt_from_json(content["receipt"])
        stored = StoredReceipt(receipt, quarantine_from_json(content["quarantine"]), content["stamps"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a receipt: {error}") from error
    if receipt.shard != shard:
        raise ValueError(f"the receipt of shard {receipt.shard}")
    return stored


def fault_of(stored: StoredReceipt, plan: Plan) -> str | None:
    """Say why a receipt does not belong to a plan, or return None."""
    receipt = stored.receipt
    if receipt.plan_hash != plan.plan_hash:
        return f"made with another plan ({receipt.plan_hash[:12]}, not {plan.plan_hash[:12]})"
    expected = [layout.part_path(level, receipt.shard) for level in plan.schemas]
    if [part.path for part in receipt.parts] != expected:
        return f"lists {', '.join(part.path for part in receipt.parts) or 'no part'}, not {', '.join(expected)}"
    return None


def stands(root: Path, stored: StoredReceipt) -> bool:
    """Say whether the files of a receipt are there in the right size, without reading them."""
    listed = [(part.path, part.n_bytes) for part in stored.receipt.parts]
    if stored.quarantine is not None:
        listed.append((stored.quarantine.path, stored.quarantine.n_bytes))
    return all(_is_file_of(root / path, n_bytes) for path, n_bytes in listed)


def _is_file_of(path: Path, n_bytes: int) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size == n_bytes


def is_untouched(root: Path, stored: StoredReceipt) -> bool:
    """Say whether every part still has the modification time that the receipt knows."""
    return all((root / p.path).lstat().st_mtime_ns == stored.stamps.get(p.path) for p in stored.receipt.parts)


def is_sound(root: Path, stored: StoredReceipt) -> bool:
    """Say whether every file of a receipt has its digest; reads them all."""
    quarantine = stored.quarantine
    parts_sound = all(is_whole(root / part.path, part) for part in stored.receipt.parts)
    return parts_sound and (quarantine is None or _digest_is(root / quarantine.path, quarantine.digest))


def _digest_is(path: Path, digest: str) -> bool:
    try:
        return files.digest_of(path) == digest
    except OSError:
        return False


def finished(root: Path, plan: Plan) -> list[StoredReceipt]:
    """Return the receipts of a plan's shards whose files stand, in corpus order; damaged ones are passed over."""
    done = []
    for shard in plan.shards:
        try:
            stored = read_receipt(root, shard.index)
        except (OSError, ValueError):
            continue
        if fault_of(stored, plan) is None and stands(root, stored):
            done.append(stored)
    return done
