"""From stores to indexes and back: building, updating, searching by texts, words in context or vectors."""

__all__ = [
    "exactrows", "hitrows", "index", "kwic", "origin", "qrels", "quality", "queryfiles", "queryvectors",
    "rowmap", "storeindex", "storemap", "storeupdate",
]  # fmt: skip
