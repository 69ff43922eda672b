"""Ids of a store's documents as digests, in one file, so that an append need not read them from all parts again.

The file is only a copy: it names the state of the plan that it covers, and the parts of later shards are read. If it is
missing or damaged, all parts are read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xxhash

from bertfeat.choices import Level
from bertfeat.corpus.duplicates import IdDigests
from bertfeat.durable.decoding import decode
from bertfeat.records import Plan
from bertfeat.storage import AnyPath
from bertfeat.store import layout
from bertfeat.store.codec import canonical_json
from bertfeat.store.folder import Folder
from bertfeat.store.manifest import Manifest
from bertfeat.store.openfolder import folder_at
from bertfeat.store.planstates import state_of
from bertfeat.store.reader import Store
from bertfeat.store.vectors import opened_part, read_groups


@dataclass(frozen=True, slots=True)
class _Head:
    plan_hash: str
    digest: str


_NONE = IdDigests(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def ids_of(path: AnyPath, manifest: Manifest, plan: Plan) -> IdDigests:
    """Return the digests of the ids of a store; a document without rows at any level has no id there.

    Raises:
        StoreError: A part is missing or damaged.
    """
    known, n_shards = _read(folder_at(path), plan)
    later = list(_ids_in_parts(Store(path, manifest.with_shards(n_shards))))
    return known.merged(IdDigests.of(later)) if later else known


def write_ids(folder: Folder, plan_hash: str, ids: IdDigests) -> None:
    """Write the ids of a store as it was when its plan had this hash; for the holder of the lock.

    Raises:
        RunError: The system refused.
    """
    data = ids.high.astype("<u8").tobytes() + ids.low.astype("<u8").tobytes()
    head = _Head(plan_hash, xxhash.xxh3_128_hexdigest(data))
    folder.write(layout.IDS, canonical_json(asdict(head)).encode() + b"\n" + data, "ids")


def _read(folder: Folder, plan: Plan) -> tuple[IdDigests, int]:
    """Return the ids in the file, and how many shards they cover; nothing if there is no usable file."""
    with contextlib.suppress(OSError, ValueError):
        head, _, data = folder.read(layout.IDS).partition(b"\n")
        about = decode(_Head, json.loads(head))
        state = state_of(plan, about.plan_hash)
        if state is not None and about.digest == xxhash.xxh3_128_hexdigest(data):
            high, low = np.frombuffer(data, "<u8").astype(np.uint64).reshape(2, -1)
            return IdDigests(high, low), len(state.shards)
    return _NONE, 0


def _ids_in_parts(store: Store) -> Iterator[Any]:
    if not store.manifest["shards"]:
        return
    # The level with the fewest rows; the enum goes from tokens to sentences.
    level = max(store.levels, key=list(Level).index)
    for part in store.stored_parts(level):
        with opened_part(part) as file:
            ids = read_groups(file, range(file.num_row_groups), ["doc_id"]).column(0)
        yield from ids.unique().to_pylist()
