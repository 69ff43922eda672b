"""Transforms fitted in one pass against those of scikit-learn and NumPy with everything in memory."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from bertfeat.ann.transforms import (
    Transform,
    TransformSpec,
    fit_transform,
    prepare,
    transform_of,
)
from bertfeat.errors import UserError
from bertfeat.vectors.array import ArrayVectors, Vectors
from bertfeat.vectors.nearest import Metric

pytestmark = pytest.mark.numeric


def features(n: int = 600, dim: int = 24, *, mean: float = 1.0, deviation: float = 1.0, seed: int = 0) -> np.ndarray:
    """Correlated vectors with a common mean: deviations fall from `deviation` to a twentieth of it."""
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    spread = rng.normal(size=(n, dim)) * np.geomspace(deviation, deviation / 20, dim)
    return (mean + spread @ turn).astype(np.float32)


def fit(vectors: np.ndarray | Vectors, spec: str) -> Transform:
    source = ArrayVectors(vectors, chunk_rows=100) if isinstance(vectors, np.ndarray) else vectors
    transform = fit_transform(source, TransformSpec.parse(spec))
    assert transform is not None
    return transform


@pytest.mark.parametrize("text", ["pca", "center:3", "Whiten", "zca:3", "pca:0", "whiten:-3", "whiten:3.0"])
def test_wrong_specs_are_refused(text):
    with pytest.raises(UserError, match=r"^transform '.*': (choose one of none, center|DIM is '.*'; give a whole)"):
        TransformSpec.parse(text)


@pytest.mark.parametrize(
    ("spec", "n_vectors", "message"),
    [
        ("pca:25", 100, "transform 'pca:25': the vectors have 24 dimensions; give 1 to 24"),
        ("whiten", 24, "transform 'whiten': it takes 25 vectors or more, and there are 24; use a smaller DIM, center"),
        ("pca:8", 5, "transform 'pca:8': it takes 9 vectors or more, and there are 5; use a smaller DIM"),
    ],
)
def test_vectors_that_a_transform_cannot_be_fitted_to(spec, n_vectors, message):
    with pytest.raises(UserError) as caught:
        fit(features(n_vectors), spec)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("metric", list(Metric))
def test_truncation_keeps_the_first_values_at_length_one(metric):
    vectors = features(50)
    vectors[7, :5] = 0
    transform = fit(vectors, "truncate:5")
    want = vectors[:, :5].astype(np.float64)
    want /= np.maximum(np.linalg.norm(want, axis=1, keepdims=True), 1e-30)
    np.testing.assert_allclose(prepare(vectors, transform, metric), want, rtol=2**-22, atol=0)
    assert (transform.dim, transform.out_dim) == (24, 5)
    again = transform_of(transform.to_arrays())
    np.testing.assert_array_equal(again.apply(vectors), transform.apply(vectors))


def test_centring_subtracts_the_mean():
    vectors = features()
    transform = fit(vectors, "center")
    want = vectors - vectors.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(transform.mean, vectors.mean(axis=0, dtype=np.float64), rtol=1e-14)
    np.testing.assert_array_equal(transform.apply(vectors), want.astype(np.float32))
    assert (transform.dim, transform.out_dim, transform.matrix) == (24, 24, None)


@pytest.mark.parametrize("dim", [1, 7, 24])
@pytest.mark.parametrize(("kind", "atol"), [("pca", 1e-5), ("whiten", 1e-4)])
def test_principal_axes_and_whitening_are_those_of_scikit_learn(kind, atol, dim):
    vectors, others = features(), features(seed=1)
    transform = fit(vectors, f"{kind}:{dim}")
    oracle = PCA(dim, svd_solver="full", whiten=kind == "whiten").fit(vectors.astype(np.float64))
    signs = np.sign((transform.matrix * oracle.components_.T).sum(axis=0))
    if kind == "pca":
        np.testing.assert_allclose(transform.matrix, oracle.components_.T * signs, atol=1e-5)
    np.testing.assert_allclose(transform.apply(others), oracle.transform(others) * signs, atol=atol)
    assert (transform.matrix[np.abs(transform.matrix).argmax(axis=0), np.arange(dim)] > 0).all()


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (100.0, 0.01), (1e4, 0.05)])
def test_whitened_vectors_have_unit_covariance_with_any_mean(mean, deviation):
    vectors = features(5000, mean=mean, deviation=deviation)
    transform = fit(ArrayVectors(vectors, chunk_rows=700), "whiten")
    white = transform.apply(vectors).astype(np.float64)
    np.testing.assert_allclose(np.cov(white.T), np.eye(24), atol=2e-6)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(transform.mean, vectors.mean(axis=0, dtype=np.float64), rtol=1e-13)


def test_vectors_that_are_all_the_same_have_no_axes():
    same = np.repeat(np.random.default_rng(0).normal(size=(1, 24)).astype(np.float32), 50, axis=0)
    for vectors in (same, np.zeros_like(same)):
        with pytest.raises(UserError, match="transform 'whiten': all 50 vectors are the same; use none"):
            fit(vectors, "whiten")
        np.testing.assert_allclose(fit(vectors, "center").apply(vectors), 0, atol=1e-7)
