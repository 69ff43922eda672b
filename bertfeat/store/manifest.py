"""Manifest of a store: written last; the same plan gives the same bytes, however often the run was interrupted."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from bertfeat.choices import Level, StoreDtype, VectorEncoding
from bertfeat.durable.decoding import check_version, decode
from bertfeat.errors import StoreError
from bertfeat.records import Append, LevelSchema, ModelInfo, PartInfo, Plan, Receipt
from bertfeat.storage import AnyPath
from bertfeat.store import codec, layout
from bertfeat.store.folder import Folder
from bertfeat.store.planstates import shard_hash
from bertfeat.store.receipts import QuarantineInfo, StoredReceipt, check_paths
from bertfeat.store.runs import check_runs
from bertfeat.store.vectorlayout import VectorLayout


class ManifestDamaged(StoreError):
    """A manifest.json exists and cannot be read."""


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
class _Keys:
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


class Manifest(dict[str, Any]):
    """A store's manifest as JSON values."""

    @functools.cached_property
    def receipts(self) -> list[StoredReceipt]:
        """The shards as receipts; seconds and times, which a manifest lacks, are empty.

        Raises:
            ValueError: A shard's entry is damaged, or its parts are not those of the manifest's levels.
        """
        schemas, appends = self.schemas, decode(tuple[Append, ...], self.get("appends", []))
        found = []
        for entry in self["shards"]:
            shard = decode(_Shard, entry)
            plan_hash = shard_hash(self["plan_hash"], appends, shard.shard)
            receipt = Receipt(shard.shard, plan_hash, shard.parts, shard.n_bad_rows, shard.counts, {}, "")
            stored = StoredReceipt(receipt, shard.quarantine, {})
            check_paths(stored)
            if sorted(part.level for part in shard.parts) != sorted(schemas):
                raise ValueError(f"shard {shard.shard} has parts of other levels than {', '.join(sorted(schemas))}")
            for part in shard.parts:
                check_runs(part, schemas[part.level].features, self.vectors)
            found.append(stored)
        return found

    @functools.cached_property
    def schemas(self) -> dict[Level, LevelSchema]:
        """The columns of each level."""
        return codec.schemas_from_json(self["levels"])

    @functools.cached_property
    def vectors(self) -> VectorLayout:
        """The type and encoding of the vectors."""
        return VectorLayout(StoreDtype(self["store_dtype"]), VectorEncoding(self["vector_encoding"]))

    def with_shards(self, first: int = 0, stop: int | None = None) -> Self:
        """Return a copy with the entries of some shards."""
        found = type(self)({**self, "shards": self["shards"][first:stop]})
        found.receipts = self.receipts[first:stop]
        return found

    def encoded(self) -> bytes:
        """Return the bytes of the file."""
        return codec.seal(self, compact="appends" in self)


_last: codec.LastFile[Manifest] = codec.LastFile()


def build_manifest(plan: Plan, receipts: Sequence[StoredReceipt], earlier: Manifest | None = None) -> Manifest:
    """Return the manifest: a function of the plan and of the reproducible fields of its receipts.

    With the manifest of an earlier state of the plan, the receipts are those of the shards after it.
    """
    vectors = VectorLayout.of(plan)
    n_before = len(earlier.get("appends", [])) if earlier else 0
    content = {
        "format_version": layout.version_of(plan.appends),
        "plan_hash": plan.plan_hash,
        "metadata": plan.metadata,
        "model": asdict(plan.model),
        "store_dtype": vectors.dtype,
        "vector_encoding": vectors.encoding,
        "levels": {level: codec.schema_to_json(schema) for level, schema in plan.schemas.items()},
        "shards": [_shard(stored) for stored in receipts],
        "totals": asdict(_totals([stored.receipt for stored in receipts])),
        **({"appends": [asdict(append) for append in plan.appends[n_before:]]} if plan.appends else {}),
    }
    # The values that reading the file gives.
    added = Manifest(json.loads(codec.canonical_json(content)))
    if earlier is None:
        return added
    joined = {name: [*earlier.get(name, []), *added[name]] for name in ("shards", "appends") if name in added}
    whole = Manifest({**added, **joined, "totals": _added([earlier["totals"], added["totals"]])})
    whole.receipts = [*earlier.receipts, *added.receipts]
    return whole


def write_manifest(folder: Folder, manifest: Manifest) -> None:
    """Write a manifest; of a grown store, it replaces that before the append in one step.

    Raises:
        RunError: The system refused.
    """
    data = manifest.encoded()
    if "appends" in manifest:
        folder.write(layout.MANIFEST, data, "manifest")
        _last.keep(folder.path / layout.MANIFEST, data, manifest)
        return
    folder.remove(layout.MANIFEST)
    folder.commit(layout.MANIFEST, data, "manifest")


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


def read_manifest(folder: Folder, *, follow_links: bool = False) -> Manifest:
    """Return a store's manifest.

    Raises:
        FileNotFoundError: There is no manifest: the store is not complete.
        ManifestDamaged: The manifest is damaged.
        StoreError: The manifest is of a newer format.
    """
    path = folder.path / layout.MANIFEST
    try:
        data = folder.read(layout.MANIFEST, follow_links=follow_links)
        found = _last.of(path, data, lambda: _manifest_in(data, path))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError) as error:
        raise ManifestDamaged(f"{path}: {error}; run bertfeat verify, then the command that made the store") from error
    # A copy: stores hand their manifest out.
    return found.with_shards()


def _manifest_in(data: bytes, path: AnyPath) -> Manifest:
    content = codec.unseal(data)
    check_version(path, content, layout.GROWN_VERSION)
    decode(_Keys, content)
    codec.metadata_from_json(content["metadata"])
    found = Manifest(content)
    _ = found.receipts
    return found
