"""The store: plan, parts, receipts and manifest on disk; written shard by shard, verified, and read.

This module imports nothing: a description of a store needs neither polars nor pyarrow.
"""

__all__ = [
    "commit", "compaction", "conditions", "description", "folder", "layout", "manifest", "parts", "plan_file",
    "provenance", "reader", "receipts", "selection", "vectors", "verification", "writer",
]  # fmt: skip
