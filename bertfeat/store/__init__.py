"""The store: plan, parts, receipts and manifest on disk; written shard by shard, verified, and read."""

from bertfeat.store.commit import commit_shard
from bertfeat.store.planfile import read_plan
from bertfeat.store.reader import Store, open_store
from bertfeat.store.selection import FeatureBatch
from bertfeat.store.verification import Problem, VerifyReport, mark_for_redoing, verify
from bertfeat.store.writer import StoreWriter, open_for_writing

__all__ = [
    "FeatureBatch", "Problem", "Store", "StoreWriter", "VerifyReport", "checks", "codec", "commit", "commit_shard",
    "compaction", "folder", "framefiles", "idfile", "layout", "lock", "manifest", "mark_for_redoing",
    "open_for_writing", "open_store", "openfolder", "opening", "parts", "plandifferences", "planfile", "planstates",
    "provenance", "read_plan", "reader", "receipts", "rowcolumns", "rowmap", "rowmapwriter", "vectors", "verification",
    "verify", "writer",
]  # fmt: skip
