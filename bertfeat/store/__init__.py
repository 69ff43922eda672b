"""The store: plan, parts, receipts and manifest on disk; written shard by shard, verified, and read.

This module imports nothing: a description of a store needs neither polars nor pyarrow.
"""

__all__ = [
    "commit", "compaction", "folder", "layout", "manifest", "parts", "planfile",
    "provenance", "reader", "receipts", "selection", "storedescription", "vectors", "verification", "writer",
]  # fmt: skip
