"""Automatic choice of an index by vectors, memory and recall, and its tuning."""

from __future__ import annotations

import pytest

from bertfeat.ann.budget import Shape, plan_build, plan_memory
from bertfeat.ann.build import build as build_planned
from bertfeat.ann.description import BuildSettings
from bertfeat.ann.folder import read_index, read_transform
from bertfeat.ann.index import VectorIndex
from bertfeat.errors import UserError
from bertfeat.vectors.array import ArrayVectors
from bertfeat.vectors.nearest import Metric
from tests.support.search_vectors import brute_force, mixture, recall

pytestmark = pytest.mark.usefixtures("no_fsync")

COSINE, IP, L2 = Metric


def build(vectors, folder, asked):
    return build_planned(ArrayVectors(vectors), folder, plan_build(*vectors.shape, asked))


def opened_from(folder, result) -> VectorIndex:
    index = read_index(folder / "index.faiss")
    return VectorIndex(index, result.metric, read_transform(folder), result.parameters)


def chosen(n_vectors: int, dim: int, **changes) -> list[str]:
    plans = plan_build(n_vectors, dim, BuildSettings(**changes))
    assert all(plan.fits for plan in plans)
    return [plan.info.text for plan in plans]


def test_few_vectors_are_compared_one_by_one_and_many_are_put_into_lists():
    assert chosen(40_000, 384) == ["Flat"]
    # The number of dimensions after the transform counts.
    assert chosen(100_000, 384, transform="pca:64") == ["Flat"]
    assert chosen(100_000, 384)[0] == "IVF1024,PQ192x4fs,Refine(SQ8)"
    assert chosen(20_000_000, 384, max_memory=10**11)[0] == "IVF16384_HNSW32,PQ192x4fs,Refine(SQ8)"
    # Codes of two dimensions each, of a width that is even; of an odd number, or of few, codes of each.
    assert chosen(1_000_000, 385)[0] == "IVF4096,PQ385x4fs,Refine(SQ8)"
    assert chosen(2_000_000, 16)[:2] == ["IVF4096,PQ16x4fs,Refine(SQ8)", "IVF4096,PQ16x4fs,Refine(SQfp16)"]


def test_little_memory_takes_a_smaller_index():
    by_memory = [chosen(1_000_000, 384, max_memory=int(n))[0] for n in (1e9, 8e8, 6e8, 5e8)]
    assert by_memory == ["IVF4096,PQ192x4fs,Refine(SQ8)", "IVF4096,SQ8", "IVF4096,SQ6", "IVF4096,RaBitQ4"]
    with pytest.raises(UserError, match=r"max_memory 100\.0 MB: too little for any .*; IVF4096,RaBitQ takes 29"):
        chosen(1_000_000, 384, max_memory=10**8)


def test_recall_is_the_same_for_other_queries(tmp_path):
    factory, metric, transform = "IVF256,PQ32x4fs,Refine(SQ8)", L2, "whiten"
    vectors, others = mixture(10_000, 32, spread=1.0), mixture(300, 32, spread=1.0, seed=5)
    asked = BuildSettings(factory=factory, metric=metric, transform=transform, n_queries=800, n_threads=1)
    result = build(vectors, tmp_path, asked)
    measured = result.measured
    assert measured["target_met"] is True
    assert measured["recall_at_10"] >= 0.95
    index = opened_from(tmp_path, result)
    truth = brute_force(vectors, others, 10, metric, transform=index.transform)[1]
    found = recall(index.search(others, 10).positions, truth)
    assert found >= 0.94
    assert found == pytest.approx(measured["recall_at_10"], abs=0.03)
    # Not all lists are searched, and fewer would not be enough.
    assert 1 < result.parameters["nprobe"] < 256
    assert measured["candidates"][-1]["tried"][0]["recall_at_10"] < 0.95


def outliers(n: int, dim: int):
    """Return vectors of which a few are so long that all others are equal in eight bits."""
    vectors = mixture(n, dim, n_clusters=5)
    vectors[::500] *= 500
    return vectors


def test_an_index_of_too_low_a_recall_is_replaced_by_the_next(tmp_path):
    vectors, asked = outliers(7_000, 16), BuildSettings(metric=L2, n_queries=200, n_threads=1)
    names = ["IVF128,PQ16x4fs,Refine(SQ8)", "IVF128,PQ16x4fs,Refine(SQfp16)", "IVF128,SQfp16", "IVF128,Flat"]
    plans = [plan_memory(name, Shape(*vectors.shape), asked) for name in names]
    result = build_planned(ArrayVectors(vectors), tmp_path, plans)
    met = [values["target_met"] for values in result.measured["candidates"]]
    assert met == [False] * (len(met) - 1) + [True]
    assert [values["factory"] for values in result.measured["candidates"]] == names[: len(met)]
    assert (result.factory, result.measured["target_met"]) == (names[len(met) - 1], True)
    assert read_index(tmp_path / "index.faiss").ntotal == 7_000


def test_a_target_that_is_not_met_is_reported(tmp_path):
    asked = BuildSettings(factory="IVF16,SQ4", metric=L2, recall=0.99, n_queries=200, n_threads=1)
    result = build(outliers(3000, 16), tmp_path, asked)
    assert result.measured["target_met"] is False
    assert result.measured["recall_at_10"] < 0.5
    assert result.measured["recall_target"] == 0.99


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("IVF64_HNSW8,Flat", {"nprobe", "quantizer_efSearch"}),
        ("IVF32,PQ16x4fs,Refine(SQ8)", {"nprobe", "k_factor_rf"}),
        ("SQ8", set()),
    ],
)
def test_every_search_parameter_is_tuned(text, names, tmp_path):
    vectors = mixture(6000, 32, spread=1.0)
    result = build(vectors, tmp_path, BuildSettings(factory=text, n_queries=400, n_threads=1))
    assert set(result.parameters) == names
    assert result.measured["target_met"] is True
    assert result.measured["queries_per_s"] > 0
    assert result.measured["bytes_per_vector"] == pytest.approx(
        (tmp_path / "index.faiss").stat().st_size / 6000, abs=0.01
    )
