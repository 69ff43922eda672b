"""Slim probes: a choice that keeps the score, its principal axes folded in, and what it says of rows apart."""
# ruff: noqa: N806

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertfeat.errors import UserError
from bertfeat.heads.linear import LogisticRegressionProbe, RidgeProbe
from tests.support.probe_streams import ArrayStream

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_head_on_principal_axes_is_a_pipeline_of_scikit_learn_folded_into_one_layer(n_classes: int) -> None:
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(300, 40)) @ rng.normal(size=(40, 40)) + 5).astype(np.float32)
    y = (X[:, :3] @ rng.normal(size=(3, n_classes)) + rng.normal(size=(300, n_classes))).argmax(axis=1)
    for source in (X, ArrayStream(X, (1, 150, 151))):
        probe = LogisticRegressionProbe(n_components=8).fit(source, y)
        oracle = make_pipeline(StandardScaler(), PCA(8), LogisticRegression()).fit(X.astype(np.float64), y)
        assert probe.coef_.shape == (1 if n_classes == 2 else n_classes, 40)
        np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))
        np.testing.assert_allclose(probe.predict_proba(X), oracle.predict_proba(X), atol=1e-5)
        numbers = RidgeProbe(task="regress", n_components=8).fit(source, X[:, 0])
        oracle = make_pipeline(StandardScaler(), PCA(8), Ridge()).fit(X.astype(np.float64), X[:, 0])
        np.testing.assert_allclose(numbers.predict(X), oracle.predict(X), atol=1e-4)
    with pytest.raises(UserError, match="n_components 41 is too many for 300 vectors 40 wide"):
        LogisticRegressionProbe(n_components=41).fit(X, y)
