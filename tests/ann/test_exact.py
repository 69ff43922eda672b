"""Exact search against brute force: every score and every position, with ties and left-out vectors."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfeat.ann.exact import exact_search
from bertfeat.ann.transforms import TransformSpec, fit_transform
from bertfeat.errors import UserError
from bertfeat.vectors.array import ArrayVectors
from bertfeat.vectors.nearest import Metric
from tests.support.search_vectors import all_scores, brute_force

pytestmark = [pytest.mark.promise("search"), pytest.mark.numeric]

COSINE, IP, L2 = Metric


def features(n: int, dim: int = 24, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (0.5 + rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) / dim).astype(np.float32)


def check_search(vectors, queries, k, metric, *, transform=None, source=None, max_bytes=2**28, **narrow):
    source = ArrayVectors(vectors) if source is None else source
    scores, positions = exact_search(source, queries, k, metric, transform, max_bytes=max_bytes, **narrow)
    want_scores, want_positions = brute_force(vectors, queries, k, metric, transform=transform, **narrow)
    assert (scores.dtype, positions.dtype) == (np.float32, np.int64)
    if getattr(transform, "matrix", None) is None:
        np.testing.assert_array_equal(positions, want_positions)
        np.testing.assert_allclose(scores, want_scores, rtol=3e-7, atol=1e-7)
        return
    # A product may round otherwise in another block, so vectors that are equally close may change places.
    turned, asked = transform.apply(vectors), transform.apply(queries)
    bound = rounding(turned, asked, metric)
    np.testing.assert_allclose(scores, want_scores, rtol=0, atol=bound)
    np.testing.assert_array_equal(positions < 0, want_positions < 0)
    own = np.take_along_axis(all_scores(turned, asked, metric), positions, axis=1)
    np.testing.assert_allclose(np.where(positions < 0, np.nan, own), want_scores, rtol=0, atol=bound)
    for row in positions:
        assert len(set(row[row >= 0].tolist())) == (row >= 0).sum()


def rounding(vectors: np.ndarray, queries: np.ndarray, metric: Metric) -> float:
    """Bound the difference of scores when each number of both sides changes by one unit in the last place, 2^-23."""
    longest, of_query = (np.linalg.norm(side.astype(np.float64), axis=1).max() for side in (vectors, queries))
    # By the product rule and Cauchy-Schwarz; a cosine moves with both lengths too. The score itself is rounded once.
    return 2**-23 * {COSINE: 4 + 1, IP: 3 * longest * of_query, L2: 2 * (longest + of_query)}[metric]


@pytest.mark.parametrize("transform", ["none", "center", "whiten", "whiten:10", "pca:10", "truncate:10"])
@pytest.mark.parametrize("metric", list(Metric))
def test_hits_are_those_of_brute_force(metric, transform):
    vectors, queries = features(400), features(12, seed=1)
    vectors[300:320] = vectors[100:120]
    source = ArrayVectors(vectors, chunk_rows=110)
    fitted = fit_transform(source, TransformSpec.parse(transform))
    # Enough for 50 vectors of 24 numbers at a time.
    some = {"transform": fitted, "source": source, "max_bytes": 50 * 24 * 32}
    check_search(vectors, queries, 15, metric, **some)
    allowed = np.random.default_rng(2).random(400) < 0.3
    exclude = np.arange(100, 112)
    check_search(vectors, vectors[exclude], 15, metric, **some, allowed=allowed, exclude=exclude)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.sampled_from(list(Metric)), st.integers(0, 40), st.integers(1, 4), st.integers(1, 12))
def test_ties_left_out_vectors_and_missing_hits(data, metric, n_vectors, dim, k):
    # Small whole numbers: many pairs score the same, and zero vectors occur.
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = rng.integers(-2, 3, (n_vectors, dim)).astype(np.float32)
    n_queries = data.draw(st.integers(0, 5))
    queries = rng.integers(-2, 3, (n_queries, dim)).astype(np.float32)
    source = ArrayVectors(vectors, chunk_rows=data.draw(st.integers(1, 40)))
    allowed = rng.random(n_vectors) < 0.6 if data.draw(st.booleans()) else None
    exclude = rng.integers(-1, max(n_vectors, 1), n_queries) if data.draw(st.booleans()) else None
    max_bytes = data.draw(st.sampled_from([1, 700, 2**28]))
    check_search(vectors, queries, k, metric, source=source, max_bytes=max_bytes, allowed=allowed, exclude=exclude)


@pytest.mark.parametrize("metric", list(Metric))
def test_vectors_closer_to_each_other_than_float32_products_can_tell(metric):
    # Differences in the last bits of one number: products in float32 order these at random.
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(1, 300)).astype(np.float32), 500, axis=0)
    vectors[:, 7] = np.float32(0.5) + rng.permutation(500).astype(np.float32) * np.float32(2**-22)
    check_search(vectors, rng.normal(size=(4, 300)).astype(np.float32), 20, metric)


@pytest.mark.parametrize(("mean", "deviation"), [(1000.0, 0.01), (1e-20, 1e-21), (1e12, 1e11)])
@pytest.mark.parametrize("metric", list(Metric))
def test_a_common_mean_and_any_scale(metric, mean, deviation):
    rng = np.random.default_rng(0)
    vectors, queries = (rng.normal(mean, deviation, (n, 24)).astype(np.float32) for n in (300, 6))
    scores, positions = exact_search(ArrayVectors(vectors, chunk_rows=70), queries, 10, metric)
    want_scores, want_positions = brute_force(vectors, queries, 10, metric)
    np.testing.assert_array_equal(positions, want_positions)
    np.testing.assert_allclose(scores, want_scores, rtol=3e-7)


def test_working_memory_stays_below_its_limit():
    vectors = features(6000, 32)
    queries = features(400, 32, seed=1)
    source = ArrayVectors(vectors, chunk_rows=1000)
    exact_search(source, queries[:2], 10, L2)
    peaks = []
    for max_bytes in (2 * 2**20, 2**28):
        tracemalloc.start()
        exact_search(source, queries, 10, L2, max_bytes=max_bytes)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    beside = 4 * queries.nbytes + 1000 * 32 * 4 * 2 + 400 * 10 * 12 * 3
    assert peaks[0] < 2 * 2**20 + beside < peaks[1]


def broken(n: int, value: float) -> np.ndarray:
    vectors = features(20)
    vectors[n, 3] = value
    return vectors


@pytest.mark.parametrize(
    ("vectors", "queries", "options", "message"),
    [
        (features(20), features(2), {"k": 0}, "k is 0: ask for 1 hit or more"),
        (features(20), features(2, 23), {}, r"queries of shape \(2, 23\): the index takes \(n_queries, 24\)"),
        (features(20), broken(9, np.nan), {}, "query 9 holds NaN or infinity"),
        (broken(13, np.nan), features(2), {}, "row 13: its vector holds NaN or infinity"),
        (features(20), features(2), {"allowed": np.ones(19, bool)}, r"allowed is bool of shape \(19,\): give bool of"),
    ],
)
def test_wrong_arguments_are_refused(vectors, queries, options, message):
    with pytest.raises(UserError, match=message):
        exact_search(ArrayVectors(vectors, chunk_rows=6), queries, metric=L2, **{"k": 3, **options})
