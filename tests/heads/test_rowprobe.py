"""Promises of every head of rows: scikit-learn's conventions, types of labels, and bad input refused in one line."""

# ruff: noqa: N806
from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from bertfeat.errors import UserError
from bertfeat.heads.base import Probe
from bertfeat.heads.registry import HEADS, head_class, make_head
from tests.support.probe_streams import noisy_rows

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]

PARAMS = {"mlp": {"hidden_size": 16, "batch_size": 32, "lr": 0.01, "max_epochs": 5}}
Make = Callable[..., Probe]


@pytest.fixture(params=[name for name in HEADS if not head_class(name).is_tagger])
def make(request: pytest.FixtureRequest) -> Make:
    return partial(make_head, request.param, **PARAMS.get(request.param, {}))


def test_heads_are_scikit_learn_estimators(make: Make) -> None:
    X, y = noisy_rows()
    probe = make(standardize=False)
    assert is_classifier(probe)
    assert clone(probe).get_params() == probe.get_params()
    assert not hasattr(probe, "n_features_in_")
    for use in (lambda: probe.predict(X), probe.fit_report):
        with pytest.raises(NotFittedError):
            use()
    assert cross_val_score(probe, X, y, cv=3).mean() > 0.4
    assert make_pipeline(Normalizer(), make()).fit(X, y).predict(X).dtype == y.dtype
    grid = GridSearchCV(make(), {"standardize": [True, False]}, cv=2).fit(X, y)
    assert grid.best_estimator_.n_features_in_ == 20
    assert probe.fit(X, y) is probe


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], np.array([1, 2], np.uint8)])
def test_predictions_have_the_type_of_the_labels(make: Make, labels) -> None:
    X, y = noisy_rows(n_classes=2)
    y = np.asarray(labels)[(y == "bee").astype(int)]
    probe = make().fit(X, y)
    assert probe.predict(X).dtype == y.dtype
    assert probe.score(X, y) > 0.7
    assert probe.predict(X[:0]).shape == (0,)
    assert make().fit(X, y.tolist()).predict(X).tolist() == probe.predict(X).tolist()
    assert hasattr(probe, "predict_proba") == (probe.head in ("logreg", "knn", "mlp"))
    if hasattr(probe, "predict_proba"):
        probabilities = probe.predict_proba(X)
        assert probabilities.dtype == np.float32
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
        assert probe.predict_proba(X[:0]).shape == (0, 2)


def test_a_vector_with_nan_is_named(make: Make) -> None:
    X, y = noisy_rows()
    bad = X.copy()
    bad[123, 4] = np.nan
    for standardize in (True, False):
        with pytest.raises(UserError, match="row 123: its vector holds NaN or infinity"):
            make(standardize=standardize).fit(bad, y)
    with pytest.raises(UserError, match=r"^dev: row 123: "):
        make().fit(X, y, dev=(bad, y))
    bad[123, 4] = -np.inf
    with pytest.raises(UserError, match="row 123: "):
        make().fit(X, y).predict(bad)


def test_bad_input_is_refused_in_one_line(make: Make) -> None:
    X, y = noisy_rows()
    for changes, message in (
        ({"y": np.repeat("a", 300)}, "one class alone, 'a'"),
        ({"X": X[:0], "y": y[:0]}, "holds no labels"),
        ({"y": y[:-1]}, "X has 300 rows and y 299 labels|y has 299 labels for 300 rows of X"),
        ({"X": X[:, 0]}, r"shape \(300,\)"),
        ({"dev": (X[:0], y[:0])}, "dev has no rows"),
        ({"dev": (X[:, :5], y)}, "dev's X has vectors 5 wide; the probe was fitted on vectors 20 wide"),
        ({"dev": (X, np.arange(300))}, "dev holds labels such as 0, train such as '"),
        ({"dev": X}, "dev is a ndarray; pass a pair"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            make().fit(**{"X": X, "y": y, **changes})
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="standardize 'yes' is neither True nor False"):
        make(standardize="yes").fit(X, y)
    with pytest.raises(UserError, match="X has vectors 3 wide; the probe was fitted on vectors 20 wide"):
        make().fit(X, y).predict(X[:, :3])


def test_an_unknown_head_or_parameter_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"no head 'forest'; heads are logreg, svm, .*, bilstm"):
        make_head("forest")
    with pytest.raises(UserError, match=r"ridge has no parameter 'C'; it has class_weight, .*n_components, alpha"):
        make_head("ridge", C=1)
