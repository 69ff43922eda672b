"""From stores to indexes and back: building, updating, searching by texts, words in context or vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertfeat.lazynames import lazy_names

if TYPE_CHECKING:
    from bertfeat.ann.evaluation import retrieval_metrics
    from bertfeat.ann.transforms import TransformSpec
    from bertfeat.search.hitrows import Context, words_in_context
    from bertfeat.search.index import nearest_rows
    from bertfeat.search.quality import evaluate_retrieval, read_qrels
    from bertfeat.search.queryfiles import QueryFile

__all__ = [
    "Context", "QueryFile", "TransformSpec", "evaluate_retrieval", "hitrows", "index", "nearest_rows", "origin",
    "quality", "queryfiles", "queryvectors", "read_qrels", "retrieval_metrics", "storeindex", "storemap", "storeupdate",
    "words_in_context",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "ann.evaluation": "retrieval_metrics",
        "ann.transforms": "TransformSpec",
        "search.hitrows": "Context words_in_context",
        "search.index": "nearest_rows",
        "search.quality": "evaluate_retrieval read_qrels",
        "search.queryfiles": "QueryFile",
    },
)
