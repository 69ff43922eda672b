"""The manifest: written last, the same bytes for the same plan however often the run was broken off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bertfeat.config import Level, StoreDtype, VectorEncoding
from bertfeat.durable.decoding import check_version, decode
from bertfeat.errors import StoreError
from bertfeat.records import ModelInfo, PartInfo, Plan, Receipt
from bertfeat.storage import AnyPath
from bertfeat.store import codec, layout
from bertfeat.store.folder import Folder
from bertfeat.store.receipts import QuarantineInfo, StoredReceipt, check_paths, quarantine_to_json
from bertfeat.store.schema import VectorLayout


@dataclass(frozen=True, slots=True)
class _Totals:
    n_shards: int
    n_rows: Mapping[Level, int]
    n_bytes: Mapping[Level, int]
    n_bad_rows: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Shard:
    shard: int
    parts: tuple[PartInfo, ...]
    n_bad_rows: int
    counts: Mapping[str, int]
    quarantine: QuarantineInfo | None


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The keys of a manifest; what a reader uses of each shard, level and the metadata is checked when it is used."""

    format_version: int
    plan_hash: str
    metadata: Mapping[str, Any]
    model: ModelInfo
    store_dtype: StoreDtype
    vector_encoding: VectorEncoding
    levels: Mapping[Level, Any]
    shards: tuple[Any, ...]
    totals: _Totals


def build_manifest(plan: Plan, receipts: Sequence[StoredReceipt]) -> bytes:
    """Return the manifest's bytes: a function of the plan and of what is reproducible in its receipts."""
    vectors = VectorLayout.of(plan)
    return codec.seal(
        {
            "format_version": layout.FORMAT_VERSION,
            "plan_hash": plan.plan_hash,
            "metadata": dict(plan.metadata),
            "model": asdict(plan.model),
            "store_dtype": str(vectors.dtype),
            "vector_encoding": str(vectors.encoding),
            "levels": {str(level): codec.schema_to_json(schema) for level, schema in plan.schemas.items()},
            "shards": [_shard(stored) for stored in receipts],
            "totals": _totals(receipts),
        }
    )


def _shard(stored: StoredReceipt) -> dict[str, Any]:
    receipt = stored.receipt
    return {
        "shard": receipt.shard,
        "parts": [codec.part_to_json(part) for part in receipt.parts],
        "n_bad_rows": receipt.n_bad_rows,
        "counts": dict(receipt.counts),
        "quarantine": quarantine_to_json(stored.quarantine),
    }


def _totals(receipts: Sequence[StoredReceipt]) -> dict[str, Any]:
    rows: Counter[str] = Counter()
    n_bytes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for stored in receipts:
        counts.update(stored.receipt.counts)
        for part in stored.receipt.parts:
            rows[str(part.level)] += part.n_rows
            n_bytes[str(part.level)] += part.n_bytes
    return {
        "n_shards": len(receipts),
        "n_rows": dict(rows),
        "n_bytes": dict(n_bytes),
        "n_bad_rows": sum(stored.receipt.n_bad_rows for stored in receipts),
        "counts": dict(counts),
    }


def read_manifest(folder: Folder, *, follow_links: bool = False) -> dict[str, Any]:
    """Return a store's manifest.

    Raises:
        FileNotFoundError: There is none: the store is not complete.
        StoreError: It is damaged, or of a newer format.
    """
    path = folder.path / layout.MANIFEST
    try:
        content = codec.unseal(folder.read(layout.MANIFEST, follow_links=follow_links))
        check_version(path, content, layout.FORMAT_VERSION)
        decode(_Manifest, content)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        raise unusable(path, error) from error
    return content


def unusable(path: AnyPath, error: Exception) -> StoreError:
    """Return the error of a manifest that cannot be used."""
    return StoreError(f"{path}: {error}; run bertfeat verify, then the command that made the store")


def receipts_in(manifest: Mapping[str, Any]) -> list[StoredReceipt]:
    """Return what a manifest says of each shard as receipts; seconds and times, which it lacks, are empty.

    Raises:
        ValueError: A shard's entry is not one, or has other parts than the levels that the manifest has.
    """
    levels = {str(level) for level in manifest["levels"]}
    found = []
    for entry in manifest["shards"]:
        shard = decode(_Shard, entry)
        receipt = Receipt(shard.shard, manifest["plan_hash"], shard.parts, shard.n_bad_rows, shard.counts, {}, "")
        stored = StoredReceipt(receipt, shard.quarantine, {})
        check_paths(stored)
        if sorted(str(part.level) for part in shard.parts) != sorted(levels):
            raise ValueError(f"shard {shard.shard} has parts of other levels than {', '.join(sorted(levels))}")
        found.append(stored)
    return found
