"""Quality of an index: recall against exact search, speed, and the measures of a retrieval set."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.ann.budget import CHUNK_BYTES
from bertfeat.ann.evaluation import retrieval_metrics, with_relevant
from bertfeat.ann.exact import sample_positions
from bertfeat.ann.indexfolder import read_queries
from bertfeat.ann.tuning import HeldOut, measured_recall
from bertfeat.errors import UserError
from bertfeat.records import IntArray
from bertfeat.search.index import Index
from bertfeat.search.qrels import read_qrels
from bertfeat.search.queryfiles import QueryFile
from bertfeat.vectors.store import StoreVectors

RECALL_KS = (1, 10, 100)
_RETRIEVED = 100
_TIMED_K = 10


def evaluate_index(index: Index, *, n_queries: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Measure the recall of an index against exact search, and its speed.

    The queries are random vectors of the index; a vector is not counted as a hit for itself. A hit that is as close as
    the last true one counts as true.

    Returns:
        `n_queries`, `recall@K` for K of 1, 10 and 100 (None where the index holds K vectors or fewer), `queries_per_s`
        for 10 hits each, and `ms_per_query` of queries one at a time. If the index was tuned by given queries, `given`
        has the same values for those of them that did not tune it.

    Raises:
        UserError: The index holds fewer than 2 vectors, or its store is not there.
    """
    if index.n_vectors < 2:
        raise UserError(f"{index.path}: holds {index.n_vectors} vectors; recall needs 2 or more")
    if n_queries < 1:
        raise UserError(f"`n_queries={n_queries}` is below 1")
    source = StoreVectors(index.store, index.level, index.spec.feature, rows=index.rows, chunk_bytes=CHUNK_BYTES)
    own = sample_positions(index.n_vectors, n_queries, seed)
    measured = _measured(index, source, index.vectors(own), own)
    if (given := read_queries(index.path)) is not None:
        measured["given"] = _measured(index, source, given[1::2])
    return measured


def _measured(
    index: Index, source: StoreVectors, queries: npt.NDArray[Any], own: IntArray | None = None
) -> dict[str, Any]:
    """Measure an index with queries; `own` are the positions of those that are among its vectors."""
    ks = [k for k in RECALL_KS if k < index.n_vectors]
    held = HeldOut.of(source, queries, own, max(ks), index.metric, index.transform)
    recalls: dict[str, float | None] = dict.fromkeys(f"recall@{k}" for k in RECALL_KS)
    for k in ks:
        # A search for more hits is more thorough, so each K is a search of its own.
        recalls[f"recall@{k}"], _ = measured_recall(index.nearest, source, held, k, index.metric, index.transform)
    k = min(_TIMED_K, index.n_vectors)
    started = time.perf_counter()
    index.nearest(queries, k)
    seconds = max(time.perf_counter() - started, 1e-9)
    return {
        "n_queries": len(queries),
        **recalls,
        "queries_per_s": len(queries) / seconds,
        "ms_per_query": _alone_ms(index, queries, k),
    }


def evaluate_retrieval(index: Index, qrels: str | Path, queries: str | Path) -> dict[str, Any]:
    """Measure an index on a retrieval set: nDCG@10, MRR@10 and recall@100, as trec_eval and BEIR define them.

    Queries without a relevant document are not searched for; one with such a document that the file lacks counts 0.

    Returns:
        `n_queries`, the queries that were searched for; `n_missing`, those that the file lacks; and the measures.

    Raises:
        UserError: A file cannot be read, no query of the file has a relevant document, or the index has none of the
            documents.
    """
    judged = with_relevant(read_qrels(qrels))
    _check_documents(index, judged, qrels)
    ranked: dict[str, list[str]] = {}
    for batch in QueryFile(queries).batches():
        asked = [query for query in batch if str(query.query_id) in judged]
        if asked:
            found = _rankings(index, [query.text for query in asked], [query.name for query in asked])
            ranked |= dict(zip([str(query.query_id) for query in asked], found, strict=True))
    if not ranked:
        raise UserError(
            f"{qrels}: gives none of the queries of {queries} a relevant document; ids there are like {_some(judged)}"
        )
    measures = retrieval_metrics(ranked, judged, ks=(10, _RETRIEVED))
    wanted = ("ndcg@10", "mrr@10", f"recall@{_RETRIEVED}")
    return {"n_queries": len(ranked), "n_missing": len(judged.keys() - ranked.keys())} | {
        name: measures[name] for name in wanted
    }


def _check_documents(index: Index, judged: Mapping[str, Mapping[str, int]], qrels: str | Path) -> None:
    """Refuse judgements of other documents: every hit would count as wrong."""
    wanted = {document for grades in judged.values() for document in grades}
    doc_ids = index.store.polars(index.level, ["doc_id"])["doc_id"].unique()
    if wanted.isdisjoint(map(str, doc_ids.to_list())):
        raise UserError(
            f"{qrels}: judges none of the documents of {index.store.path}; ids there are like {_some(doc_ids.sort())}, "
            f"here {_some(sorted(wanted))}; extract with the `id_column` that has these"
        )


def _rankings(index: Index, texts: Sequence[str], names: Sequence[str]) -> list[list[str]]:
    """Return the ids of the documents found for each text, best first."""
    k = min(_RETRIEVED, index.n_vectors)
    frame = index.search(index.encode(texts, names), k, columns=["doc_id"])
    ranked: list[list[str]] = [[] for _ in texts]
    for query, doc_id in zip(frame["query"].to_list(), frame["doc_id"].to_list(), strict=True):
        ranked[query].append(str(doc_id))
    return ranked


def _alone_ms(index: Index, queries: npt.NDArray[Any], k: int) -> float:
    """Return the median milliseconds of single queries."""
    times = []
    for query in queries[:50]:
        started = time.perf_counter()
        index.nearest(query[None], k)
        times.append(time.perf_counter() - started)
    return float(np.median(times) * 1000)


def _some(ids: Iterable[object]) -> str:
    return ", ".join(map(repr, itertools.islice(ids, 3)))
