"""Quality of an index: recall against exact search, speed, and the measures of a retrieval set."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertfeat.ann.budget import CHUNK_BYTES
from bertfeat.ann.evaluation import query_metrics, with_relevant
from bertfeat.ann.exact import sample_positions
from bertfeat.ann.folder import read_given
from bertfeat.ann.tuning import HeldOut, measured_recall
from bertfeat.choices import Level
from bertfeat.errors import InputError, UserError
from bertfeat.records import IntArray
from bertfeat.search.query_files import QueryFile
from bertfeat.vectors.store import StoreVectors

if TYPE_CHECKING:
    from bertfeat.search.index import Index

_KS = (1, 10, 100)
_RETRIEVED = 100
_MEASURES = ("ndcg@10", "mrr@10", f"recall@{_RETRIEVED}")
_TIMED_K = 10
# Names of the query, the document and the grade in JSON.
_KEYS = (
    ("query_id", "query-id", "qid"),
    ("doc_id", "corpus-id", "corpus_id", "docid"),
    ("score", "relevance", "rel", "label"),
)

Qrels = dict[str, dict[str, int]]


def evaluate_index(index: Index, *, n_queries: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Measure the recall of an index against exact search, and its speed; see `Index.evaluate`."""
    if index.n_vectors < 2:
        raise UserError(f"{index.path}: holds {index.n_vectors} vectors; recall needs 2 or more")
    if n_queries < 1:
        raise UserError(f"`n_queries={n_queries}` is below 1")
    own = sample_positions(index.n_vectors, n_queries, seed)
    measured = _measured(index, index.vectors(own), own)
    if (given := read_given(index.path)) is not None:
        measured["given"] = _measured(index, given[1::2])
    return measured


def _measured(index: Index, queries: npt.NDArray[Any], own: IntArray | None = None) -> dict[str, Any]:
    """Measure an index with queries; `own` are the positions of those that are among its vectors."""
    ks = [k for k in _KS if k < index.n_vectors]
    source = StoreVectors(index.store, index.level, index.spec.feature, rows=index.rows, chunk_bytes=CHUNK_BYTES)
    held = HeldOut.of(source, queries, own, max(ks), index.metric, index.transform)
    recalls: dict[str, float | None] = dict.fromkeys(f"recall@{k}" for k in _KS)
    for k in ks:
        # A search for more hits is more thorough, so each K is a search of its own.
        recalls[f"recall@{k}"], _ = measured_recall(index.nearest, source, held, k, index.metric, index.transform)
    alone = [_seconds(index, query[None]) for query in queries[:50]]
    return {
        "n_queries": len(queries),
        **recalls,
        "queries_per_s": len(queries) / _seconds(index, queries),
        "ms_per_query": float(np.median(alone) * 1000),
    }


def _seconds(index: Index, queries: npt.NDArray[Any]) -> float:
    """Return how long a search for 10 hits of each query takes."""
    started = time.perf_counter()
    index.nearest(queries, _TIMED_K)
    return max(time.perf_counter() - started, 1e-9)


def evaluate_retrieval(
    index: Index,
    qrels: str | Path,
    queries: str | Path,
    *,
    rerank: str | None = None,
    candidates: int | str | None = None,
) -> dict[str, Any]:
    """Measure an index on a retrieval set: nDCG@10, MRR@10 and recall@100, as trec_eval and BEIR define them.

    Queries without a relevant document are not searched for; one with such a document that the file lacks counts 0.

    Args:
        index: The index.
        qrels: The file of relevance judgements; see `read_qrels`.
        queries: The file of queries; see `QueryFile`.
        rerank: As for `Index.search`; by default as an index of tokens answers texts.
        candidates: As for `Index.search`.

    Returns:
        `n_queries`, the queries that were searched for; `n_missing`, those that the file lacks; and the measures. Of a
        search that reranks also `rerank`, the same measures of the vectors alone as `dense`, and as `gain` the mean
        difference of the two with its 95 % interval.

    Raises:
        UserError: A file cannot be read, no query of the file has a relevant document, or the index has none of the
            documents.
    """
    judged = with_relevant(read_qrels(qrels))
    documents = {document for grades in judged.values() for document in grades}
    doc_ids = index.store.polars(index.level, ["doc_id"])["doc_id"].unique()
    if documents.isdisjoint(map(str, doc_ids.to_list())):
        # Every hit would count as wrong.
        raise UserError(
            f"{qrels}: judges none of the documents of {index.store.path}; ids there are like {_some(doc_ids.sort())}, "
            f"here {_some(sorted(documents))}; extract with the `id_column` that has these"
        )
    how = rerank or str(index.default_rerank)
    ranked: dict[str, dict[str, list[str]]] = {way: {} for way in ("none", how)}
    for batch in QueryFile(queries).batches():
        if wanted := [query for query in batch if str(query.query_id) in judged]:
            encoded = index.encode([query.text for query in wanted], [query.name for query in wanted])
            for way, found in ranked.items():
                found |= {str(query.query_id): [] for query in wanted}
                n = None if way == "none" else candidates
                # Documents are judged: of several passages the best one counts.
                group_by = "doc_id" if index.level is Level.SPAN else None
                hits = index.search(
                    encoded, _RETRIEVED, columns=["doc_id"], rerank=way, candidates=n, group_by=group_by
                )
                for number, doc_id in hits.select("query", "doc_id").iter_rows():
                    found[str(wanted[number].query_id)].append(str(doc_id))
    n_queries = len(ranked["none"])
    if not n_queries:
        raise UserError(
            f"{qrels}: gives none of the queries of {queries} a relevant document; ids there are like {_some(judged)}"
        )
    counts = {"n_queries": n_queries, "n_missing": len(judged.keys() - ranked["none"].keys())}
    each = {way: query_metrics(found, judged, ks=(10, _RETRIEVED)) for way, found in ranked.items()}
    means = {way: {name: float(np.mean(values[name])) for name in _MEASURES} for way, values in each.items()}
    if how == "none":
        return counts | means["none"]
    gains = {name: _gain(np.subtract(each[how][name], each["none"][name])) for name in _MEASURES}
    return {**counts, **means[how], "rerank": how, "dense": means["none"], "gain": gains}


def _gain(differences: npt.NDArray[Any]) -> dict[str, float]:
    """Return the mean of what each query gains, and its 95 % interval by the percentile bootstrap over queries."""
    from bertfeat.heads.bootstrap import resamples

    means = [differences[units].mean() for units in resamples(len(differences), 1000, seed=0)]
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": float(differences.mean()), "low": float(low), "high": float(high)}


def _some(ids: Iterable[object]) -> str:
    return ", ".join(map(repr, itertools.islice(ids, 3)))


def read_qrels(path: str | Path) -> Qrels:
    """Return the grade of each judged document, by query; ids are texts.

    A line is `query iteration document grade` (TREC), `query document grade` (BEIR, whose first line is a header), or a
    JSON object with `query_id`, `doc_id` and `score` (or the names of BEIR).

    Raises:
        InputError: The file is missing or empty; or a line is not a judgement, or contradicts one before.
    """
    try:
        lines = Path(path).read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"cannot be read ({(error.strerror or str(error)).lower()})", path=str(path)) from error
    except UnicodeDecodeError:
        raise InputError("is not UTF-8; convert the file", path=str(path)) from None
    qrels: Qrels = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        try:
            query, document, grade = _judgement(line)
        except ValueError:
            if number == 1 and line.split()[0].lower() in (*_KEYS[0], "query", "topic"):
                continue
            raise InputError(
                f"{line!r:.60} is not a judgement; write 'query 0 document grade', 'query document grade', or "
                '{"query_id": ..., "doc_id": ..., "score": ...}',
                path=str(path),
                row=number,
            ) from None
        before = qrels.setdefault(query, {}).setdefault(document, grade)
        if before != grade:
            raise InputError(
                f"document {document!r} has grade {grade} for query {query!r}, and {before} in a line before; keep one",
                path=str(path),
                row=number,
            )
    if not qrels:
        raise InputError("holds no judgements", path=str(path))
    return qrels


def _judgement(line: str) -> tuple[str, str, int]:
    """Return the query, the document and the grade of a line; raise a ValueError if the line is not a judgement."""
    if line.startswith("{"):
        values: dict[str, Any] = json.loads(line)
        query, document, grade = (next((values[key] for key in keys if key in values), None) for keys in _KEYS)
    else:
        fields = [field.strip() for field in (line.split("\t") if "\t" in line else line.split())]
        query, *_, document, grade = fields if len(fields) in (3, 4) else []
    number = float(str(grade))
    if query is None or document is None or not number.is_integer():
        raise ValueError
    return str(query), str(document), int(number)
