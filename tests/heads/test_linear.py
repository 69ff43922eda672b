"""Linear probes against scikit-learn's own, in memory and streamed, and under scikit-learn's tools."""

# ruff: noqa: N803, N806
from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from bertfeat.errors import UserError
from bertfeat.heads.linear import LinearSVMProbe, LogisticRegressionProbe, RidgeProbe
from tests.support.probe_streams import ArrayStream, noisy_rows

BORDERS = (1, 150, 151, 400)
WEIGHTS_AND_SOURCES = [(None, False), ("balanced", False), ("balanced", True)]


# The ten classes take too long to be solved under every setting of `make test-cpus`.
@pytest.fixture(params=[load_digits, pytest.param(load_breast_cancer, marks=pytest.mark.numeric)], ids=["ten", "two"])
def data(request):
    """Real vectors of ten or two classes."""
    X, y = request.param(return_X_y=True)
    return X[:600].astype(np.float32), y[:600]


def exact(X) -> np.ndarray:
    """Return vectors standardized by scikit-learn, in float64."""
    return StandardScaler().fit_transform(X.astype(np.float64))


def reach(n_weights: int, *, strength: float, streamed: bool) -> float:
    """Return how far from the minimum a search with tol 1e-7 may end, where the curvature is at least `strength`.

    A stream is searched in float64, down to a gradient of 1e-7 in each entry. In memory scikit-learn computes in
    float32, which tells losses about 1e-7 apart, not less.
    """
    return np.sqrt(n_weights) * 1e-7 / strength if streamed else np.sqrt(2 * 1e-7 / strength)


@pytest.mark.parametrize(("class_weight", "streamed"), WEIGHTS_AND_SOURCES)
def test_logistic_regression_is_scikit_learns(data, class_weight, streamed):
    X, y = data
    oracle = LogisticRegression(C=0.01, class_weight=class_weight, tol=1e-10, max_iter=10_000).fit(exact(X), y)
    probe = LogisticRegressionProbe(C=0.01, class_weight=class_weight, tol=1e-7)
    probe.fit(ArrayStream(X, BORDERS) if streamed else X, y)
    assert probe.fit_report()["converged"]
    atol = reach(oracle.coef_.size, strength=1 / (0.01 * len(y)), streamed=streamed)
    assert atol < 2e-3
    np.testing.assert_allclose(probe.coef_, oracle.coef_, atol=atol, rtol=0)
    np.testing.assert_allclose(probe.predict_proba(X), oracle.predict_proba(exact(X)), atol=1e-3)
    np.testing.assert_allclose(probe.decision_function(X), oracle.decision_function(exact(X)), atol=0.02)
    assert (probe.predict(X) == oracle.predict(exact(X))).mean() > 0.999


@pytest.mark.parametrize(("class_weight", "streamed"), WEIGHTS_AND_SOURCES)
@pytest.mark.parametrize(
    ("probe", "oracle", "atol"),
    [
        (LinearSVMProbe(C=0.05, tol=1e-8), LinearSVC(C=0.05, tol=1e-9, max_iter=100_000), 2e-5),
        (RidgeProbe(alpha=3.0), RidgeClassifier(alpha=3.0), 1e-6),
    ],
    ids=["svm", "ridge"],
)
def test_the_svm_is_liblinears_and_ridge_is_scikit_learns(data, probe, oracle, atol, class_weight, streamed):
    X, y = data
    oracle = clone(oracle).set_params(class_weight=class_weight).fit(exact(X), y)
    source = ArrayStream(X, BORDERS) if streamed else X
    probe = clone(probe).set_params(class_weight=class_weight).fit(source, y)
    np.testing.assert_allclose(probe.coef_, np.atleast_2d(oracle.coef_), atol=atol, rtol=0)
    np.testing.assert_allclose(probe.intercept_, oracle.intercept_, atol=atol, rtol=0)
    np.testing.assert_allclose(probe.decision_function(X), oracle.decision_function(exact(X)), atol=1e-3)
    np.testing.assert_array_equal(probe.predict(X), oracle.predict(exact(X)))


@pytest.mark.parametrize(
    ("cls", "name"), [(LogisticRegressionProbe, "C"), (LinearSVMProbe, "C"), (RidgeProbe, "alpha")]
)
def test_a_list_of_penalties_keeps_the_best_on_dev(cls, name):
    X, y = noisy_rows()
    X_train, y_train, X_dev, y_dev = X[:100], y[:100], X[100:], y[100:]
    values = [10.0, 0.001, 1.0, 0.0001, 1.0]
    probe = cls(**{name: values}, metric="macro_f1").fit(
        ArrayStream(X_train, (30,)), y_train, dev=(ArrayStream(X_dev, (60,)), y_dev)
    )
    report = probe.fit_report()
    strongest_first = sorted(set(values), reverse=name == "alpha")
    assert [entry[name] for entry in report["tried"]] == strongest_first
    scores = []
    for entry in report["tried"]:
        alone = cls(**{name: entry[name]}).fit(X_train, y_train)
        want = f1_score(y_dev, alone.predict(X_dev), average="macro")
        # Searches that start elsewhere end within tol of each other: at most a row or two fall on the other side.
        assert entry["dev_score"] == pytest.approx(want, abs=0.011)
        scores.append(entry["dev_score"])
    assert report["dev_score"] == max(scores)
    assert report[name] == strongest_first[scores.index(max(scores))]
    # The kept coefficients are the solution for the value that was chosen.
    chosen = cls(**{name: report[name]}, **({} if name == "alpha" else {"tol": 1e-7})).fit(X_train, y_train)
    np.testing.assert_allclose(probe.decision_function(X_dev), chosen.decision_function(X_dev), atol=0.1)


# Checks of scikit-learn for behavior that probes do not have, on purpose.
BAD_INPUT = (
    "classifiers_one_label classifiers_regression_target classifiers_train complex_data dtype_object "
    "estimator_sparse_array estimator_sparse_matrix estimator_sparse_tag estimators_empty_data_messages "
    "estimators_nan_inf fit1d fit2d_1sample fit2d_predict1d n_features_in_after_fitting requires_y_none "
    "supervised_y_2d supervised_y_no_nan"
)
OTHERWISE = {f"check_{name}": "bad input is a UserError, not a ValueError" for name in BAD_INPUT.split()} | {
    "check_class_weight_classifiers": "class weights are None or balanced, not a dict"
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("cls", [LogisticRegressionProbe, RidgeProbe])
def test_scikit_learns_own_checks_pass(cls):
    results = check_estimator(cls(), expected_failed_checks=OTHERWISE, on_fail=None)
    assert {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"} == {}
    assert sum(result["status"] == "passed" for result in results) > 30


def test_bad_parameters_are_refused_in_one_line():
    X, y = noisy_rows()
    for probe, dev, message in (
        (RidgeProbe(alpha=[0.1, 1.0]), None, "alpha is a list and there is no dev split"),
        (LogisticRegressionProbe(C=True), None, "C True is not a number"),
        (RidgeProbe(class_weight="equal"), None, "class_weight 'equal'"),
        (RidgeProbe(metric="f1"), None, "metric 'f1' must be one of auto, accuracy, macro_f1"),
        (LinearSVMProbe(max_iter=1.5), None, "max_iter 1.5"),
        (LinearSVMProbe(tol=-1), None, "tol -1"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            probe.fit(X, y, dev=dev)
        assert "\n" not in str(caught.value)
