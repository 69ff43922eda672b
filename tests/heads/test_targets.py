"""Numbers and several labels per row: heads learn what scikit-learn's estimators learn, in memory and streamed."""

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.metrics import f1_score, r2_score
from sklearn.model_selection import PredefinedSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from bertfeat.choices import Task
from bertfeat.errors import UserError
from bertfeat.heads.folder import load_probe, save_probe
from bertfeat.heads.registry import OF_TASK, make_head
from bertfeat.probes.targets import choose_task, labels_of
from tests.support.probe_streams import ArrayStream

pytestmark = [pytest.mark.promise("probes"), pytest.mark.numeric]
X, DIABETES = load_diabetes(return_X_y=True)
# Two numbers per row, of different size.
NUMBERS = np.stack([DIABETES, X[:, 2] * 1e4 + 2000], axis=1)
DIGITS, DIGIT = load_digits(return_X_y=True)
DIGITS = DIGITS[:, DIGITS.std(axis=0) > 0.5]
# What is said of a digit: lists of labels, some empty.
SAID = [("even",) * (n % 2 == 0) + ("small",) * (n < 4) + ("prime",) * (n in (2, 3, 5, 7)) for n in DIGIT.tolist()]
HAS = np.array([["even" in row, "prime" in row, "small" in row] for row in SAID])


@pytest.fixture(params=["in memory", "streamed"])
def given(request):
    """Return a function that passes vectors in memory or as a stream."""
    return (
        (lambda array: array)
        if request.param == "in memory"
        else lambda array: ArrayStream(array, (0, 50, 130, len(array)))
    )


@pytest.mark.parametrize("y", [DIABETES, NUMBERS], ids=["one number", "two numbers"])
def test_ridge_is_that_of_scikit_learn(given, y):
    probe = make_head("ridge", Task.REGRESS, alpha=3.0).fit(given(X), y)
    there = make_pipeline(StandardScaler(), Ridge(alpha=3.0)).fit(X, y)
    assert_allclose(probe.predict(X), there.predict(X), rtol=1e-5)
    assert probe.predict(X).shape == y.shape


def test_the_penalty_on_dev_is_that_of_ridge_cv(given):
    alphas, is_dev = [0.1, 10.0, 1000.0], np.arange(len(X)) % 4 == 0
    probe = make_head("ridge", Task.REGRESS, alpha=alphas, standardize=False)
    probe.fit(given(X[~is_dev]), DIABETES[~is_dev], dev=(X[is_dev], DIABETES[is_dev]))
    there = RidgeCV(alphas, cv=PredefinedSplit(is_dev - 1), scoring="r2").fit(X, DIABETES)
    assert probe.fit_report()["alpha"] == there.alpha_
    assert probe.fit_report()["dev_score"] == pytest.approx(there.best_score_)


def test_knn_is_that_of_scikit_learn():
    probe = make_head("knn", Task.REGRESS, metric="euclidean", weights="distance").fit(X, NUMBERS)
    there = make_pipeline(StandardScaler(), KNeighborsRegressor(weights="distance")).fit(X, NUMBERS)
    assert_allclose(probe.predict(X[:50] + 0.01), there.predict(X[:50] + 0.01), rtol=1e-4)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize(
    ("head", "estimator"),
    [("logreg", LogisticRegression(tol=1e-6, max_iter=5000)), ("svm", LinearSVC(tol=1e-7, max_iter=100_000))],
)
def test_one_problem_per_label_is_one_vs_rest(given, head, estimator, class_weight):
    probe = make_head(head, Task.MULTILABEL, C=0.1, tol=1e-6, class_weight=class_weight).fit(given(DIGITS), SAID)
    one_vs_rest = OneVsRestClassifier(estimator.set_params(C=0.1, class_weight=class_weight))
    there = make_pipeline(StandardScaler(), one_vs_rest).fit(DIGITS, HAS.astype(int))
    assert probe.classes_.tolist() == ["even", "prime", "small"]
    assert_allclose(probe.decision_function(DIGITS), there.decision_function(DIGITS), atol=2e-3)
    assert (probe.predict(DIGITS) != there.predict(DIGITS)).mean() < 1e-3


def test_a_label_of_every_row_can_be_balanced():
    said = [(*labels, "digit") for labels in SAID[:200]]
    probe = make_head("logreg", Task.MULTILABEL, class_weight="balanced").fit(DIGITS[:200], said)
    assert probe.predict(DIGITS[:200])[:, probe.classes_.tolist().index("digit")].all()


@pytest.mark.usefixtures("one_thread")
def test_networks_learn_numbers_and_label_sets(given):
    numbers = make_head("mlp", Task.REGRESS, max_epochs=60, lr=0.003).fit(given(X), NUMBERS)
    assert r2_score(NUMBERS, numbers.predict(X)) > 0.6
    labels = make_head("mlp", Task.MULTILABEL, max_epochs=30, lr=0.003).fit(given(DIGITS), SAID)
    assert f1_score(HAS, labels.predict(DIGITS), average="macro") > 0.97
    assert ((labels.predict_proba(DIGITS) > 0.5) == labels.predict(DIGITS)).all()
    assert not hasattr(numbers, "predict_proba")


@pytest.mark.parametrize(
    ("task", "head"), [(task, head) for task in (Task.REGRESS, Task.MULTILABEL) for head in OF_TASK[task]]
)
def test_a_saved_probe_predicts_the_same(task, head, tmp_path):
    vectors, y = (X, NUMBERS) if task is Task.REGRESS else (DIGITS[:300], SAID[:300])
    probe = make_head(head, task, **({"max_epochs": 2} if head == "mlp" else {})).fit(vectors, y, dev=(vectors, y))
    save_probe(probe, tmp_path / "probe", None)
    loaded, _ = load_probe(tmp_path / "probe")
    assert (loaded.predict(vectors) == probe.predict(vectors)).all()
    assert loaded.fit_report() == probe.fit_report()
    assert 0 <= loaded.fit_report()["dev_score"] <= 1


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ([4.5, 1.0, 3.5], Task.REGRESS),
        (["4.5", "1.0", "", None], Task.REGRESS),
        ([1.0, 2.0, float("nan")], Task.CLASSIFY),
        (["1", "2", "2"], Task.CLASSIFY),
        (["1.5", "two"], Task.CLASSIFY),
        ([True, False], Task.CLASSIFY),
        ([["a", "b"], []], Task.MULTILABEL),
        ([[0.5, 1.0], [2.0, 3.0]], Task.REGRESS),
    ],
)
def test_a_task_is_told_by_the_column(values, task):
    assert choose_task(pl.Series(values), "column 'y'")[0] is task


@pytest.mark.parametrize("values", [range(1900, 1950), [str(year) for year in range(1900, 1950)]])
def test_many_whole_numbers_ask_which_they_are(values):
    with pytest.raises(UserError, match=r"'y' holds 50 different whole numbers, such as .*1900.*pass `task='regress'`"):
        choose_task(pl.Series(values), "column 'y'")


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (["low", "high", "mid", "low"], Task.REGRESS, "'low', 'high', 'mid', not numbers"),
        (["low", "high"], Task.MULTILABEL, "'low', 'high', not lists"),
        ([0.5, 1.5], Task.CLASSIFY, "0.5, 1.5, not classes"),
        ([[1.0, 2.0], [3.0]], Task.REGRESS, "as many in each row"),
        ([0.5, float("inf")], Task.REGRESS, "finite numbers"),
    ],
)
def test_a_task_that_a_column_cannot_be_is_refused(values, task, message):
    with pytest.raises(UserError, match=rf"column 'y' .*{message}"):
        labels_of(pl.Series(values), task, "column 'y'")
