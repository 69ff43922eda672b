"""Standardization against scikit-learn's, of arrays and of streams."""

# ruff: noqa: N806
from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from bertfeat.vectors.array import ArrayVectors
from bertfeat.vectors.standardized import Scaling, fit_scaling, standardized
from tests.support.probe_streams import ArrayStream, noisy_rows


@pytest.mark.numeric
@pytest.mark.parametrize("chunk_rows", [1, 7, 1000])
def test_scaling_is_exact_where_the_mean_is_large(chunk_rows):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(5000, 6)) * [1, 1e-3, 1e4, 1, 0, 1] + [0, 1, 1e4, 1e5, 0.1, -3]).astype(np.float32)
    n_rows = 50 * chunk_rows if chunk_rows == 1 else 5000
    X = X[:n_rows]
    scaling = fit_scaling(ArrayStream(X, range(chunk_rows, n_rows, chunk_rows)))
    wide = X.astype(np.float64)
    np.testing.assert_allclose(scaling.mean, wide.mean(axis=0), rtol=1e-6, atol=1e-6)
    deviation = wide.std(axis=0)
    np.testing.assert_allclose(scaling.scale, np.where(np.arange(6) == 4, 1, deviation), rtol=1e-6)
    assert (scaling.apply(X)[:, 4] == 0).all()
    assert scaling.apply(X).dtype == np.float32
    oracle = StandardScaler().fit(wide)
    np.testing.assert_allclose(scaling.scale, oracle.scale_, rtol=1e-6)


def test_scaling_leaves_the_vectors_alone_and_identity_changes_nothing():
    X, _ = noisy_rows(dtype=np.float16)
    before = X.copy()
    assert np.array_equal(Scaling.identity(20).apply(X), X.astype(np.float32))
    source = ArrayVectors(X)
    scaled = standardized(source, fit_scaling(source)).array
    np.testing.assert_allclose(scaled, StandardScaler().fit_transform(X.astype(np.float64)), atol=1e-5)
    stream = standardized(ArrayStream(X, (7, 100)), fit_scaling(source))
    np.testing.assert_array_equal(np.concatenate([stream.read(n) for n in range(3)]), scaled)
    np.testing.assert_array_equal(X, before)
