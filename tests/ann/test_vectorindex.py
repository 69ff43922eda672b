"""An open index: Flat against brute force, the recall of the others, filters, and growth."""

from __future__ import annotations

import numpy as np
import pytest

from bertfeat.ann.build import extend
from bertfeat.ann.factory import describe
from bertfeat.ann.index import VectorIndex
from bertfeat.ann.library import faiss
from bertfeat.ann.transforms import TransformSpec, fit_transform, prepare
from bertfeat.errors import UserError
from bertfeat.vectors.array import ArrayVectors
from bertfeat.vectors.nearest import Metric
from tests.support.search_vectors import brute_force, mixture, recall

pytestmark = pytest.mark.numeric

COSINE, IP, L2 = Metric
DIM = 24


def made(text, vectors, metric=COSINE, transform=None, **parameters) -> VectorIndex:
    prepared = prepare(vectors, transform, metric)
    index = describe(text, prepared.shape[1], metric).make()
    index.train(prepared)
    index.add(prepared)
    return VectorIndex(index, metric, transform, parameters)


def check_exact(index, vectors, queries, k, **narrow):
    hits = index.search(queries, k, **narrow)
    scores, positions = brute_force(vectors, queries, k, index.metric, transform=index.transform, **narrow)
    np.testing.assert_allclose(hits.scores, scores, rtol=3e-6, atol=3e-7)
    np.testing.assert_array_equal(hits.positions, positions)
    assert (hits.scores.dtype, hits.positions.dtype) == (np.float32, np.int64)


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("transform", ["none", "center", "whiten", "whiten:8", "pca:8", "truncate:8"])
def test_flat_is_brute_force(metric, transform):
    vectors, queries = mixture(2000, DIM), mixture(60, DIM, seed=1)
    fitted = fit_transform(ArrayVectors(vectors), TransformSpec.parse(transform))
    index = made("Flat", vectors, metric, fitted)
    assert (index.n_vectors, index.dim) == (2000, DIM)
    check_exact(index, vectors, queries, 10)
    # faiss has other code for a single query.
    check_exact(index, vectors, queries[:1], 10)
    check_exact(index, vectors, queries, 10, allowed=np.random.default_rng(0).random(2000) < 0.1)


def test_of_equal_vectors_the_lower_position_comes_first():
    vectors = np.repeat(mixture(40, DIM), 50, axis=0)[np.random.default_rng(0).permutation(2000)]
    for metric in Metric:
        check_exact(made("Flat", vectors, metric), vectors, vectors[:30], 20)


def test_distances_hold_far_from_zero():
    # A difference of squares of numbers near 1e6 leaves no digit of distances near 1.
    vectors = mixture(3000, DIM, offset=1000.0)
    for queries in (mixture(40, DIM, offset=1000.0, seed=1), vectors[:40]):
        check_exact(made("Flat", vectors, L2), vectors, queries, 10)


APPROXIMATE = {
    "SQ8": {},
    "SQfp16": {},
    "IVF32,Flat": {"nprobe": 8},
    "IVF32,SQ8": {"nprobe": 8},
    "IVF32_HNSW8,Flat": {"nprobe": 8, "quantizer_efSearch": 32},
    "IVF32,PQ12x4fs,Refine(SQ8)": {"nprobe": 16, "k_factor_rf": 20},
    "IVF32,PQ12x4fs,RFlat": {"nprobe": 8, "k_factor_rf": 20},
    "HNSW16": {"efSearch": 64},
    "HNSW16,SQ8": {"efSearch": 64},
}


@pytest.fixture(scope="module")
def many():
    return mixture(4000, DIM), mixture(50, DIM, seed=1)


@pytest.mark.parametrize("text", APPROXIMATE)
def test_other_indexes_find_most_with_true_scores(text, many):
    vectors, queries = many
    for metric in (COSINE, L2):
        index = made(text, vectors, metric, **APPROXIMATE[text])
        hits = index.search(queries, 10)
        _, positions = brute_force(vectors, queries, 10, metric)
        assert recall(hits.positions, positions) > 0.85
        all_scores = brute_force(vectors, queries, len(vectors), metric)
        place = np.argsort(all_scores[1], axis=1)
        true = np.take_along_axis(all_scores[0], np.take_along_axis(place, hits.positions, axis=1), axis=1)
        is_lossless = text.endswith(("Flat", "HNSW16"))
        np.testing.assert_allclose(hits.scores, true, atol=1e-5 if is_lossless else 0.1)
        order = hits.scores if metric is L2 else -hits.scores
        assert (np.diff(order, axis=1) >= 0).all()


@pytest.mark.parametrize("text", APPROXIMATE)
@pytest.mark.parametrize("part", [0.5, 0.004])
def test_recall_is_as_high_under_a_filter(text, part, many):
    vectors, queries = many
    allowed = np.random.default_rng(0).random(len(vectors)) < part
    index = made(text, vectors, COSINE, **APPROXIMATE[text])
    hits = index.search(queries, 10, allowed=allowed)
    assert allowed[hits.positions].all()
    assert (hits.positions >= 0).all()
    truth = brute_force(vectors, queries, 10, COSINE, allowed=allowed)[1]
    assert recall(hits.positions, truth) > 0.85


@pytest.mark.parametrize("metric", [COSINE, L2])
@pytest.mark.parametrize("text", ["IVF64,Flat", "IVF64,PQ12x4fs,RFlat"])
def test_a_filter_that_excludes_the_nearest_lists(text, metric):
    vectors = mixture(8000, DIM)
    side = vectors @ np.random.default_rng(5).normal(size=DIM).astype(np.float32)
    queries, allowed = vectors[np.argsort(-side)[:100]], side < np.quantile(side, 0.4)
    index = made(text, vectors, metric, nprobe=2, **({"k_factor_rf": 20} if "RFlat" in text else {}))
    # The lists nearest to the queries hold no allowed vectors.
    hits = index.search(queries, 10, allowed=allowed)
    assert allowed[hits.positions].all()
    truth = brute_force(vectors, queries, 10, metric, allowed=allowed)[1]
    assert recall(hits.positions, truth) > 0.85


@pytest.mark.parametrize("text", ["Flat", "SQ8", "IVF32,Flat", "HNSW16", "IVF32,PQ12x4fs,Refine(SQ8)"])
def test_k_vectors_are_found_where_k_are_allowed(text, many):
    vectors, queries = many
    # One list of 32 does not hold these.
    index = made(text, vectors, COSINE)
    few = np.zeros(len(vectors), dtype=bool)
    few[[7, 77, 777]] = True
    hits = index.search(queries[:5], 5, allowed=few)
    assert np.sort(hits.positions, axis=1).tolist() == [[-1, -1, 7, 77, 777]] * 5
    assert np.isnan(hits.scores[:, 3:]).all()
    more = index.search(queries[:2], 4003)
    assert (more.positions[:, 4000:] == -1).all()
    assert np.sort(more.positions[:, :4000], axis=1).tolist() == [list(range(4000))] * 2


@pytest.mark.parametrize("metric", Metric)
@pytest.mark.parametrize("transform", ["none", "center"])
def test_a_query_alone_is_answered_as_among_others(metric, transform, many):
    vectors, queries = many[0].copy(), many[1].copy()
    # Equal scores, a cosine that rounds to more than 1, and a query without a direction.
    vectors[:3] = queries[0] = vectors[7]
    queries[1] = 0
    fitted = fit_transform(ArrayVectors(vectors), TransformSpec.parse(transform))
    for index in (made("IVF32,SQ8", vectors, metric, fitted, nprobe=32), made("SQ4", vectors, metric, fitted)):
        # Hits beyond the vectors are missing.
        for k in (1, 10, len(vectors) + 1):
            together = index.search(queries, k)
            alone = [index.search(query[None], k) for query in queries]
            np.testing.assert_array_equal(np.concatenate([hits.positions for hits in alone]), together.positions)
            np.testing.assert_array_equal(np.concatenate([hits.scores for hits in alone]), together.scores)
        with pytest.raises(UserError, match="query 0 holds NaN or infinity"):
            index.search(np.full((1, index.dim), np.inf), 1)


def test_wrong_requests_are_refused(many):
    vectors, queries = many
    index = made("IVF32,Flat", vectors)
    with pytest.raises(UserError, match="k is 0: ask for 1 hit or more"):
        index.search(queries, 0)
    with pytest.raises(UserError, match=r"queries of shape \(50, 23\)"):
        index.search(queries[:, 1:], 3)
    with pytest.raises(UserError, match="query 1 holds NaN"):
        index.search(np.where(np.arange(50)[:, None] == 1, np.nan, queries), 3)
    with pytest.raises(UserError, match=r"allowed is bool of shape \(3,\): give bool of shape \(4000,\)"):
        index.search(queries, 3, allowed=np.ones(3, dtype=bool))
    with pytest.raises(UserError, match="this index cannot filter its vectors"):
        made("PQ8x4", vectors[:300]).search(queries, 3, allowed=np.arange(300) % 2 == 0)


@pytest.mark.parametrize("metric", Metric)
def test_flat_extended_is_flat_built_again(metric):
    vectors = mixture(20_000, 8)
    fitted = fit_transform(ArrayVectors(vectors[:500]), TransformSpec.parse("center"))
    index = made("Flat", vectors[:500], metric, fitted)
    # The longest vectors come late.
    vectors[19_000:] *= 3
    extend(index, ArrayVectors(vectors[:12_000], chunk_rows=777), 500, 8192)
    index.search(vectors[:5], 3)
    for _ in range(2):
        extend(index, ArrayVectors(vectors, chunk_rows=777), index.n_vectors, 8192)
    rebuilt = made("Flat", vectors, metric, fitted)
    assert np.array_equal(faiss.serialize_index(index.index), faiss.serialize_index(rebuilt.index))
    check_exact(index, vectors, mixture(30, 8, seed=1), 10)
