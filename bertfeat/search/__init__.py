"""From stores to indexes and back: building, updating, searching by texts, words in context or vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertfeat.lazy_names import lazy_names

if TYPE_CHECKING:
    from bertfeat.ann.evaluation import retrieval_metrics
    from bertfeat.ann.transforms import TransformSpec
    from bertfeat.search.evaluation import evaluate_retrieval, read_qrels
    from bertfeat.search.hits import Context, words_in_context
    from bertfeat.search.index import nearest_rows
    from bertfeat.search.query_files import QueryFile

__all__ = [
    "Context", "QueryFile", "TransformSpec", "build", "evaluate_retrieval", "evaluation", "filters", "hits", "index",
    "nearest_rows", "origin", "query_files", "query_vectors", "read_qrels", "retrieval_metrics", "update",
    "words_in_context",
]  # fmt: skip

__getattr__ = lazy_names(
    __name__,
    {
        "ann.evaluation": "retrieval_metrics",
        "ann.transforms": "TransformSpec",
        "search.hits": "Context words_in_context",
        "search.index": "nearest_rows",
        "search.evaluation": "evaluate_retrieval read_qrels",
        "search.query_files": "QueryFile",
    },
)
