"""Manifest of a store: written last; the same plan gives the same bytes, however often the run was interrupted."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bertfeat.choices import Level, StoreDtype, VectorEncoding
from bertfeat.durable.decoding import check_version, decode
from bertfeat.errors import StoreError
from bertfeat.records import Append, ModelInfo, PartInfo, Plan, Receipt
from bertfeat.storage import AnyPath
from bertfeat.store import codec, layout
from bertfeat.store.folder import Folder
from bertfeat.store.planstates import shard_hash
from bertfeat.store.receipts import QuarantineInfo, StoredReceipt, check_paths
from bertfeat.store.vectorlayout import VectorLayout


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
    """The keys of a manifest; shards, levels and metadata are checked where they are used."""

    format_version: int
    plan_hash: str
    metadata: Mapping[str, Any]
    model: ModelInfo
    store_dtype: StoreDtype
    vector_encoding: VectorEncoding
    levels: Mapping[Level, Any]
    shards: tuple[Any, ...]
    totals: _Totals
    appends: tuple[Append, ...] = ()


def build_manifest(plan: Plan, receipts: Sequence[StoredReceipt], earlier: Mapping[str, Any] | None = None) -> bytes:
    """Return the manifest's bytes: a function of the plan and of the reproducible fields of its receipts.

    With the manifest of an earlier state of the plan, the receipts are those of the shards after it.
    """
    shards, before = (earlier["shards"], [earlier["totals"]]) if earlier else ([], [])
    vectors = VectorLayout.of(plan)
    return codec.seal(
        {
            "format_version": layout.version_of(plan.appends),
            "plan_hash": plan.plan_hash,
            "metadata": dict(plan.metadata),
            "model": asdict(plan.model),
            "store_dtype": vectors.dtype,
            "vector_encoding": vectors.encoding,
            "levels": {level: codec.schema_to_json(schema) for level, schema in plan.schemas.items()},
            "shards": [*shards, *(_shard(stored) for stored in receipts)],
            "totals": _added([*before, asdict(_totals([stored.receipt for stored in receipts]))]),
            **({"appends": [asdict(append) for append in plan.appends]} if plan.appends else {}),
        },
        compact=bool(plan.appends),
    )


def _added(totals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up totals as they are in JSON."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for entry in totals for name in entry):
        values = [entry[name] for entry in totals if name in entry]
        found[name] = sum(values) if isinstance(values[0], int) else _added(values)
    return found


def _shard(stored: StoredReceipt) -> dict[str, Any]:
    receipt = stored.receipt
    return {
        "shard": receipt.shard,
        "parts": [codec.part_to_json(part) for part in receipt.parts],
        "n_bad_rows": receipt.n_bad_rows,
        "counts": dict(receipt.counts),
        "quarantine": None if stored.quarantine is None else asdict(stored.quarantine),
    }


def _totals(receipts: Sequence[Receipt]) -> _Totals:
    rows: Counter[Level] = Counter()
    n_bytes: Counter[Level] = Counter()
    counts: Counter[str] = Counter()
    for receipt in receipts:
        counts.update(receipt.counts)
        for part in receipt.parts:
            rows[part.level] += part.n_rows
            n_bytes[part.level] += part.n_bytes
    return _Totals(
        len(receipts), dict(rows), dict(n_bytes), sum(receipt.n_bad_rows for receipt in receipts), dict(counts)
    )


def read_manifest(folder: Folder, *, follow_links: bool = False) -> dict[str, Any]:
    """Return a store's manifest.

    Raises:
        FileNotFoundError: There is no manifest: the store is not complete.
        StoreError: The manifest is damaged, or of a newer format.
    """
    path = folder.path / layout.MANIFEST
    try:
        # A copy: stores hand their manifest out.
        return {**_manifest_in(folder.read(layout.MANIFEST, follow_links=follow_links), str(path))}
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        raise unusable(path, error) from error


# An append reads the manifest several times, and that of a store with a thousand appends is large.
@functools.lru_cache(maxsize=1)
def _manifest_in(data: bytes, path: str) -> dict[str, Any]:
    content = codec.unseal(data)
    check_version(path, content, layout.GROWN_VERSION)
    decode(_Manifest, content)
    return content


def unusable(path: AnyPath, error: Exception) -> StoreError:
    """Return the error of a manifest that cannot be used."""
    return StoreError(f"{path}: {error}; run bertfeat verify, then the command that made the store")


def receipts_in(manifest: Mapping[str, Any]) -> list[StoredReceipt]:
    """Return the shards of a manifest as receipts; seconds and times, which it lacks, are empty.

    Raises:
        ValueError: A shard's entry is damaged, or its parts are not those of the manifest's levels.
    """
    levels = sorted(map(str, manifest["levels"]))
    appends = decode(tuple[Append, ...], manifest.get("appends", []))
    found = []
    for entry in manifest["shards"]:
        shard = decode(_Shard, entry)
        plan_hash = shard_hash(manifest["plan_hash"], appends, shard.shard)
        receipt = Receipt(shard.shard, plan_hash, shard.parts, shard.n_bad_rows, shard.counts, {}, "")
        stored = StoredReceipt(receipt, shard.quarantine, {})
        check_paths(stored)
        if sorted(str(part.level) for part in shard.parts) != levels:
            raise ValueError(f"shard {shard.shard} has parts of other levels than {', '.join(levels)}")
        found.append(stored)
    return found
