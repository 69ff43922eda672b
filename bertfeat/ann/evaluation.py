"""Measures of what a search finds: recall against exact search, and the measures of retrieval sets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from bertfeat.errors import UserError
from bertfeat.records import BoolArray, Float32Array, Float64Array, IntArray
from bertfeat.vectors.nearest import Metric

Id = TypeVar("Id", str, int)


def recall_of_each(
    found: IntArray, found_scores: Float32Array | None, truth: IntArray, truth_scores: Float32Array, metric: Metric
) -> Float64Array:
    """Return recall@k of each query, float64 (n_queries,): the part of its k nearest vectors among the k found.

    Positions are int64 (n_queries, k), of the truth at least k, -1 for no vector; without a true one, recall is NaN.
    With the true scores of what was found, a vector as close as the k-th of the truth is as good as that one.
    """
    truth = truth[:, : found.shape[1]]
    n_true = (truth >= 0).sum(axis=1)
    good = np.isin(_keys(found, truth), _keys(truth, found))
    if found_scores is not None:
        sign = 1 if metric.higher_is_better else -1
        last = np.take_along_axis(truth_scores, np.maximum(n_true - 1, 0)[:, None], axis=1)
        good |= sign * found_scores >= sign * last
    good &= (found >= 0) & _is_first(found)
    return np.where(n_true > 0, np.minimum(good.sum(axis=1), n_true) / np.maximum(n_true, 1), np.nan)


def retrieval_metrics(
    ranked: Mapping[Id, Sequence[Id]], qrels: Mapping[Id, Mapping[Id, int]], ks: Iterable[int] = (10,)
) -> dict[str, float]:
    """Return the measures of a retrieval set, as trec_eval and BEIR define them.

    The mean is over the queries of `qrels` that have a relevant document (trec_eval's `-c`): one that is not in
    `ranked` counts 0, and other queries in `ranked` do not count.

    Args:
        ranked: The ids of documents by query, best first. A repeated id takes up no rank.
        qrels: The grades of documents by query; 1 and more are relevant, the rest is the same as not judged.
        ks: How many ranks count, each 1 or more.

    Returns:
        `ndcg@K`, `mrr@K`, `recall@K` and `map@K` of each K, from 0 to 1.

    Raises:
        UserError: No query has a relevant document.

    Examples:
        >>> retrieval_metrics({"q": ["b", "a"]}, {"q": {"a": 1}})["mrr@10"]
        0.5
    """
    each = query_metrics(ranked, qrels, ks)
    return {name: math.fsum(values) / len(values) for name, values in each.items()}


def query_metrics(
    ranked: Mapping[Id, Sequence[Id]], qrels: Mapping[Id, Mapping[Id, int]], ks: Iterable[int] = (10,)
) -> dict[str, list[float]]:
    """Return the measures of each query that has a relevant document, in the order of `qrels`; see above."""
    each = [_query_metrics(ranked.get(query, ()), grades, ks) for query, grades in with_relevant(qrels).items()]
    return {name: [values[name] for values in each] for name in each[0]}


def with_relevant(qrels: Mapping[Id, Mapping[Id, int]]) -> dict[Id, Mapping[Id, int]]:
    """Return the judgements of the queries that have a relevant document; if none has one, raise a UserError."""
    judged = {query: grades for query, grades in qrels.items() if any(grade > 0 for grade in grades.values())}
    if not judged:
        raise UserError(f"relevance judgements: none of {len(qrels)} queries has a relevant document (grade 1 or more)")
    return judged


def _query_metrics(ranking: Sequence[Id], grades: Mapping[Id, int], ks: Iterable[int]) -> dict[str, float]:
    """Return the measures of one query that has a relevant document; see `retrieval_metrics`."""
    gains = [max(grades.get(document, 0), 0) for document in dict.fromkeys(ranking)]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    values = {}
    for k in ks:
        hits = [rank for rank, gain in enumerate(gains[:k], 1) if gain > 0]
        values[f"ndcg@{k}"] = _discounted(gains[:k]) / _discounted(ideal[:k])
        values[f"mrr@{k}"] = 1 / hits[0] if hits else 0.0
        values[f"recall@{k}"] = len(hits) / len(ideal)
        values[f"map@{k}"] = math.fsum(n / rank for n, rank in enumerate(hits, 1)) / len(ideal)
    return values


def _discounted(gains: Sequence[int]) -> float:
    """Add up gains, each divided by log2(1 + rank): linear in the grade (Järvelin & Kekäläinen 2002)."""
    return math.fsum(gain / math.log2(1 + rank) for rank, gain in enumerate(gains, 1))


def _is_first(found: IntArray) -> BoolArray:
    """Return which positions do not appear earlier in their row."""
    first = np.zeros(found.size, dtype=bool)
    first[np.unique(_keys(found, found), return_index=True)[1]] = True
    return first.reshape(found.shape)


def _keys(positions: IntArray, others: IntArray) -> IntArray:
    """Number (row, position) pairs so that those of both arrays can be compared."""
    width = int(max(positions.max(initial=0), others.max(initial=0))) + 2
    keys: IntArray = np.arange(len(positions))[:, None] * width + positions + 1
    return keys
