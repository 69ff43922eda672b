"""The store: plan, parts, receipts and manifest on disk; written shard by shard, verified, and read.

This module imports nothing: a description of a store needs neither polars nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertfeat.store.commit import commit_shard
    from bertfeat.store.planfile import read_plan
    from bertfeat.store.reader import Store, open_store
    from bertfeat.store.selection import FeatureBatch
    from bertfeat.store.verification import Problem, VerifyReport, mark_for_redoing, verify
    from bertfeat.store.writer import StoreWriter, open_for_writing

__all__ = [
    "FeatureBatch", "Problem", "Store", "StoreWriter", "VerifyReport", "checks", "commit", "commit_shard",
    "compaction", "folder", "layout", "lock", "manifest", "mark_for_redoing", "open_for_writing", "open_store",
    "parts", "plandifferences", "planfile", "provenance", "read_plan", "reader", "receipts", "rowcolumns",
    "storedescription", "vectors", "verification", "verify", "writer",
]  # fmt: skip

# module -> its names here; both load on first use
_HOMES = {
    "commit": "commit_shard",
    "planfile": "read_plan",
    "reader": "Store open_store",
    "selection": "FeatureBatch",
    "verification": "Problem VerifyReport mark_for_redoing verify",
    "writer": "StoreWriter open_for_writing",
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"bertfeat.store.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
