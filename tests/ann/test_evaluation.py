"""Recall and the measures of retrieval sets, against values by hand and slow and other implementations."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score

from bertfeat.ann.evaluation import recall_of_each, retrieval_metrics
from bertfeat.errors import UserError
from bertfeat.vectors.nearest import Metric


def recall_at(found, truth, k, found_scores=None, truth_scores=None, metric=Metric.IP) -> float:
    scores = None if found_scores is None else found_scores[:, :k]
    return np.nanmean(recall_of_each(found[:, :k], scores, truth, truth_scores, metric))


def query_metrics(ranking, grades, ks=(10,)) -> dict[str, float]:
    return retrieval_metrics({"q": ranking}, {"q": grades}, ks)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 6), st.integers(1, 5))
def test_recall_is_that_of_sets(data, k, n_queries):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    truth = np.stack([rng.permutation(10)[:6] for _ in range(n_queries)])
    found = rng.integers(-1, 10, (n_queries, 6))
    want = [len(set(f[:k].tolist()) & set(t[:k].tolist())) / k for f, t in zip(found, truth, strict=True)]
    assert recall_at(found, truth, k) == pytest.approx(np.mean(want))
    # Scores are small whole numbers by position: as close as the k-th is as good.
    score = rng.integers(0, 4, 10)
    order = np.argsort(-score, kind="stable")[:6]
    ranked = np.repeat(order[None], n_queries, axis=0)
    good = [min(k, sum(score[n] >= score[order[k - 1]] for n in set(f[:k].tolist()) - {-1})) / k for f in found]
    ties = {"found_scores": np.where(found >= 0, score[found], np.nan), "truth_scores": score[ranked]}
    assert recall_at(found, ranked, k, **ties, metric=Metric.IP) == pytest.approx(np.mean(good))
    negated = {name: -values for name, values in ties.items()}
    assert recall_at(found, ranked, k, **negated, metric=Metric.L2) == pytest.approx(np.mean(good))


def test_odd_grades_and_repeated_documents():
    # A grade below zero is the same as 0; a repeated document takes up no rank.
    assert query_metrics(["a", "b", "b", "c"], {"a": -2, "c": 1}, [3])["ndcg@3"] == pytest.approx(1 / log2(4))
    assert query_metrics(["a", "a", "b"], {"a": 1, "b": 1}, [2])["recall@2"] == 1
    assert query_metrics([], {"a": 1}) == {"ndcg@10": 0, "mrr@10": 0, "recall@10": 0, "map@10": 0}
    assert retrieval_metrics({7: [3, 1]}, {7: {1: 2}})["mrr@10"] == 0.5
    for qrels in ({}, {"q": {}}, {"q": {"a": 0}}):
        with pytest.raises(UserError, match=f"none of {len(qrels)} queries has a relevant document"):
            retrieval_metrics({"q": ["a"]}, qrels)


def slow_metrics(ranking: list[int], grades: dict[int, int], k: int) -> dict[str, float]:
    """Follow the definitions rank by rank."""
    n_relevant = sum(grade >= 1 for grade in grades.values())
    dcg = ideal = average = first = n_found = 0
    best = sorted(grades.values())[::-1]
    for i in range(k):
        if i < len(best) and best[i] > 0:
            ideal += best[i] / log2(i + 2)
        if i < len(ranking) and grades.get(ranking[i], 0) > 0:
            dcg += grades[ranking[i]] / log2(i + 2)
            n_found += 1
            average += n_found / (i + 1)
            first = first or 1 / (i + 1)
    values = (dcg / ideal, first, n_found / n_relevant, average / n_relevant)
    return {f"{name}@{k}": value for name, value in zip(("ndcg", "mrr", "recall", "map"), values, strict=True)}


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 12))
def test_the_measures_are_those_of_their_definitions_and_of_scikit_learn(data, k):
    documents = list(range(9))
    grades = data.draw(st.dictionaries(st.sampled_from(documents), st.integers(-1, 3), min_size=1))
    grades[0] = data.draw(st.integers(1, 3))
    ranking = data.draw(st.permutations(documents))
    cut = ranking[: data.draw(st.integers(0, 9))]
    assert query_metrics(cut, grades, [k]) == pytest.approx(slow_metrics(cut, grades, k))
    gains = np.array([max(grades.get(document, 0), 0) for document in documents])
    scores = np.array([-ranking.index(document) for document in documents])
    got = query_metrics(ranking, grades, [k, 9])
    assert got[f"ndcg@{k}"] == pytest.approx(ndcg_score([gains], [scores], k=k))
    assert got["map@9"] == pytest.approx(average_precision_score(gains > 0, scores))
