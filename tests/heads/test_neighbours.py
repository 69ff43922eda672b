"""Centroids and nearest neighbors against scikit-learn's and against brute force."""

# ruff: noqa: N803, N806
from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.preprocessing import StandardScaler

from bertfeat.errors import UserError
from bertfeat.heads.neighbors import CentroidProbe, KNNProbe
from tests.support.probe_streams import ArrayStream, noisy_rows

pytestmark = pytest.mark.numeric


def digits(dtype=np.float32):
    X, y = load_digits(return_X_y=True)
    return X[:1200].astype(dtype), y[:1200], X[1200:].astype(dtype), y[1200:]


def scaled_as(X, other) -> np.ndarray:
    """Return vectors standardized by scikit-learn as others are, in float64."""
    return StandardScaler().fit(X.astype(np.float64)).transform(other.astype(np.float64))


@pytest.mark.parametrize(
    ("k", "weights", "metric", "dtype"),
    [
        (5, "distance", "euclidean", np.float32),
        (7, "distance", "cosine", np.float32),
        (7, "uniform", "cosine", np.float16),
    ],
)
def test_knn_is_scikit_learns(k, weights, metric, dtype):
    X, y, X_test, y_test = digits(dtype)
    oracle = KNeighborsClassifier(k, weights=weights, metric=metric, algorithm="brute").fit(scaled_as(X, X), y)
    probe = KNNProbe(k=k, weights=weights, metric=metric).fit(X, y)
    assert probe.vectors_.dtype == dtype
    np.testing.assert_allclose(probe.predict_proba(X_test), oracle.predict_proba(scaled_as(X, X_test)), atol=1e-5)
    np.testing.assert_array_equal(probe.predict(X_test), oracle.predict(scaled_as(X, X_test)))
    np.testing.assert_array_equal(probe.predict(ArrayStream(X_test, (3, 300))), probe.predict(X_test))
    assert probe.score(X_test, y_test) > 0.9


# Digits have pixels that are always 0, which scikit-learn warns of.
@pytest.mark.filterwarnings("ignore:self.within_class_std_dev_")
@pytest.mark.parametrize(("standardize", "streamed"), [(False, False), (True, False), (True, True)])
def test_the_nearest_centroid_is_scikit_learns(standardize, streamed):
    X, y, X_test, _ = digits()
    source = ArrayStream(X, (1, 500, 777)) if streamed else X
    probe = CentroidProbe(metric="euclidean", standardize=standardize).fit(source, y)
    known, new = (scaled_as(X, X), scaled_as(X, X_test)) if standardize else (X, X_test)
    oracle = NearestCentroid().fit(known, y)
    np.testing.assert_allclose(probe.centroids_, oracle.centroids_, atol=1e-5)
    np.testing.assert_array_equal(probe.predict(X_test), oracle.predict(new))
    distances = pairwise_distances(new, oracle.centroids_)
    np.testing.assert_allclose(probe.decision_function(X_test), -distances, atol=1e-4)


def test_the_nearest_centroid_by_cosine_is_brute_forces():
    X, y, X_test, y_test = digits()
    probe = CentroidProbe().fit(X, y)
    scaled = scaled_as(X, X)
    centroids = np.stack([scaled[y == label].mean(axis=0) for label in range(10)])
    distances = pairwise_distances(scaled_as(X, X_test), centroids, metric="cosine")
    np.testing.assert_array_equal(probe.predict(X_test), distances.argmin(axis=1))
    np.testing.assert_allclose(probe.decision_function(X_test), 1 - distances, atol=1e-5)
    assert probe.score(X_test, y_test) > 0.8


def test_knn_refuses_a_stream_with_its_size():
    X, y = noisy_rows(n_classes=2)
    message = r"head knn keeps all of its 300 training rows in memory, 24000 bytes as float32; .* use another head"
    with pytest.raises(UserError, match=message):
        KNNProbe().fit(ArrayStream(X), y)


def test_bad_parameters_are_refused_in_one_line():
    for probe, message in (
        (CentroidProbe(metric="manhattan"), "metric 'manhattan' must be one of cosine, euclidean"),
        (KNNProbe(k=0), "k 0 is not a whole number of 1 or more"),
        (KNNProbe(k=301), "k 301 is more than the 300 training rows"),
        (KNNProbe(weights="rank"), "weights 'rank' must be one of uniform, distance"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            probe.fit(*noisy_rows(n_classes=2))
        assert "\n" not in str(caught.value)
