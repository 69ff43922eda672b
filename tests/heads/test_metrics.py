"""Scores of numbers, sets of labels and rankings against scikit-learn and scipy, and their intervals against a loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn import metrics as sk

from bertfeat.choices import Level, Task
from bertfeat.errors import UserError
from bertfeat.heads import bootstrap
from bertfeat.heads import scores as metrics
from bertfeat.heads.registry import make_head
from bertfeat.heads.scores import score_by
from bertfeat.probes import scoring
from bertfeat.probes.rows import LabelledRows
from bertfeat.probes.scoring import score_predicted, score_rows
from bertfeat.vectors.array import ArrayVectors

pytestmark = [pytest.mark.promise("probes"), pytest.mark.numeric]

N_ROWS = 240
LABELS = np.array(["art", "law", "war"])
RANDOM = np.random.default_rng(3)
LENGTHS = np.array([0, *RANDOM.multinomial(N_ROWS, [1 / 30] * 30)])
HAS_VECTOR = RANDOM.random(N_ROWS) < 0.9
LENGTHS_WITH = np.add.reduceat(HAS_VECTOR.astype(int), np.cumsum(LENGTHS)[:-1])
UNITS: dict[str, Any] = {"lengths": LENGTHS, "predicted": HAS_VECTOR, "bootstrap": True}
# Whole numbers have ties.
NUMBERS = np.stack([RANDOM.integers(0, 9, N_ROWS), RANDOM.normal(1e6, 3, N_ROWS)], axis=1).astype(np.float64)
GUESSES = NUMBERS + RANDOM.normal(0, 2, NUMBERS.shape).round()
SETS = np.empty(N_ROWS, object)
SETS[:] = [(*LABELS[row], *["new"] * (i % 40 == 0)) for i, row in enumerate(RANDOM.random((N_ROWS, 3)) < 0.3)]
KNOWN = np.array([[label in row for label in LABELS] for row in SETS])
SET_GUESSES = KNOWN ^ (RANDOM.random(KNOWN.shape) < 0.2)
# Some resamples lack the last class.
CLASSES = RANDOM.choice(3, N_ROWS, p=[0.5, 0.48, 0.02])
# Rounded scores have ties.
CLASS_SCORES = (np.eye(3)[CLASSES] + RANDOM.normal(0, 1, (N_ROWS, 3))).round(1).astype(np.float32)

CORRELATIONS = {
    "pearson": lambda *pair: pearsonr(*pair).statistic,
    "spearman": lambda *pair: spearmanr(*pair).statistic,
}
NUMBER_SCORES = {"r2": sk.r2_score, **CORRELATIONS, "rmse": sk.root_mean_squared_error, "mae": sk.mean_absolute_error}
RANKING_SCORES = {"auroc": sk.roc_auc_score, "average_precision": sk.average_precision_score}


def set_scores(true: np.ndarray, guessed: np.ndarray) -> dict[str, float]:
    occurs = np.flatnonzero((true | guessed).any(axis=0))
    f1 = {how: sk.f1_score(true, guessed, average=how, labels=occurs, zero_division=0) for how in ("macro", "micro")}
    return dict(zip(metrics.SET_METRICS, (*f1.values(), sk.accuracy_score(true, guessed)), strict=True))


def ranking_score(name: str, true: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Return the mean over the classes with rows of both kinds."""
    times = np.ones(len(true)) if weights is None else weights
    pairs = [(t, p) for t, p in zip(true.T, scores.T, strict=True) if 0 < times @ t < times.sum()]
    return float(np.mean([RANKING_SCORES[name](*pair, sample_weight=weights) for pair in pairs]))


def check_interval(found: Any, statistic: Any, lengths: np.ndarray, score: Callable[[Any], float]) -> None:
    """Compare an interval with its statistic, and 40 resamples with the scores of their rows."""
    assert found == bootstrap.bootstrap(statistic)
    assert (found.n_units, found.n_resamples) == (len(lengths), 1000)
    parts = np.split(np.arange(lengths.sum()), np.cumsum(lengths)[:-1])
    values = [score(np.concatenate([parts[i] for i in units])) for units in bootstrap.resamples(len(parts), 40, seed=0)]
    assert bootstrap.resampled_scores(statistic, 40) == pytest.approx(values, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("columns", [0, slice(None)], ids=["one target", "two targets"])
def test_numbers_are_scored_without_the_rows_that_have_no_vector(columns: Any) -> None:
    true, guessed = NUMBERS[:, columns], np.where(HAS_VECTOR[:, None], GUESSES, 0)[:, columns]
    score = score_predicted(true, guessed, np.zeros(0), task=Task.REGRESS, **UNITS)
    true, guessed = true[HAS_VECTOR], guessed[HAS_VECTOR]
    targets = list(zip(true.reshape(len(true), -1).T, guessed.reshape(len(true), -1).T, strict=True))
    for name, measure in NUMBER_SCORES.items():
        each = [measure(*target) for target in targets]
        assert score.values[name] == pytest.approx(np.mean(each))
        assert [scores[name] for scores in score.scores.per_part.values()] == pytest.approx(each)
        statistic = bootstrap.number_statistic(name, targets, LENGTHS_WITH)
        of_rows = lambda rows, of=measure: np.mean([of(t[rows], p[rows]) for t, p in targets])  # noqa: E731
        check_interval(score.intervals[name], statistic, LENGTHS_WITH, of_rows)
    assert (score.metric, score.scores.n_rows, [*score.values]) == ("r2", HAS_VECTOR.sum(), [*NUMBER_SCORES])
    assert f"rows without a vector, which cannot be scored and are left out: {(~HAS_VECTOR).sum()}" in str(score)


def test_correlations_of_equal_numbers_are_undefined() -> None:
    true, guessed = np.full(10, 0.1), np.full(10, 0.3)
    units = {**UNITS, "lengths": None, "predicted": np.ones(10, np.bool_), "task": Task.REGRESS}
    assert score_predicted(true, true, np.zeros(0), **units).value == 1
    score = score_predicted(true, guessed, np.zeros(0), **units)
    found = json.loads(json.dumps(score.to_dict(), allow_nan=False))
    assert (found["r2"], found["pearson"], found["spearman"]) == (0, None, None)
    assert set(score.intervals) == set(score.values) == {"r2", "rmse", "mae"}
    assert (score.intervals["r2"].low, score.intervals["r2"].high) == (0, 0)
    assert ["Pearson", "-", "-", "-"] in [line.split() for line in score.lines()]
    assert score_by("pearson", true, guessed) == 0
    # Two of four draws of two documents take one of them twice.
    pairs = metrics.pair_numbers(np.array([0.1, 0.1, 0.2, 0.2]), np.array([0.1, 0.3, 0.3, 0.2]))
    for metric in ("pearson", "spearman"):
        values = bootstrap.resampled_scores(bootstrap.number_statistic(metric, pairs, np.array([2, 2])), 100)
        assert np.isnan(values).tolist() == [len(set(units)) == 1 for units in bootstrap.resamples(2, 100, seed=0)]


def test_sets_of_labels_count_unseen_labels_as_missed_and_rows_without_a_vector_as_empty() -> None:
    score = score_predicted(SETS, SET_GUESSES, LABELS, task=Task.MULTILABEL, **UNITS)
    names, known_guesses = np.sort([*LABELS, "new"]), SET_GUESSES & HAS_VECTOR[:, None]
    true = np.array([[name in row for name in names] for row in SETS])
    guessed = np.insert(known_guesses, list(names).index("new"), False, axis=1)
    assert score.values == pytest.approx(set_scores(true, guessed))
    report = sk.classification_report(true, guessed, target_names=names, output_dict=True, zero_division=0)
    for name in names:
        want = dict(zip(("precision", "recall", "f1", "support"), report[name].values(), strict=True))
        assert score.to_dict()["per_class"][name] == pytest.approx(want)
    assert f"labels that training has not seen, counted as missed: new ({true[:, 2].sum()} rows)" in score.lines()
    assert f"rows without a vector, counted as predicted without labels: {(~HAS_VECTOR).sum()}" in score.lines()
    sets = metrics.pair_label_sets(SETS, known_guesses, LABELS)
    for metric in metrics.SET_METRICS:
        statistic = bootstrap.set_statistic(metric, *sets[1:], LENGTHS[LENGTHS > 0])
        of_rows = lambda rows, name=metric: set_scores(true[rows], guessed[rows])[name]  # noqa: E731
        check_interval(score.intervals[metric], statistic, LENGTHS[LENGTHS > 0], of_rows)
        assert score_by(metric, SETS, known_guesses, classes=LABELS) == score.values[metric]


@pytest.mark.parametrize("kind", ["classes", "two classes", "two columns", "sets"])
def test_rankings_are_each_class_against_the_rest(kind: str) -> None:
    truth, classes, scores, true = LABELS[CLASSES], LABELS, CLASS_SCORES, np.eye(3)[CLASSES] > 0
    guesses, task = classes[scores.argmax(axis=1)], Task.MULTILABEL if kind == "sets" else Task.CLASSIFY
    if kind == "sets":
        truth, true, guesses = SETS, KNOWN, SET_GUESSES
    elif kind != "classes":
        truth, classes, true = np.where(CLASSES == 1, "b", "a"), np.array(["a", "b"]), true[:, [1]]
        scores = scores[:, 1] if kind == "two classes" else scores[:, :2]
        guesses = truth[::-1]
    columns = scores if scores.shape == true.shape else scores.reshape(N_ROWS, -1)[:, -1:]
    scores, columns, true = scores[HAS_VECTOR], columns[HAS_VECTOR], true[HAS_VECTOR]
    score = score_predicted(truth, guesses, classes, task=task, scores=scores, **UNITS)
    pairs = [*metrics.pair_rankings(truth[HAS_VECTOR], scores, classes, are_sets=kind == "sets").values()]
    for metric in metrics.RANKING_METRICS:
        assert score.values[metric] == pytest.approx(ranking_score(metric, true, columns))
        statistic = bootstrap.ranking_statistic(metric, pairs, LENGTHS_WITH)
        of_rows = lambda rows, name=metric: ranking_score(name, true[rows], columns[rows])  # noqa: E731
        check_interval(score.intervals[metric], statistic, LENGTHS_WITH, of_rows)
        times = np.bincount(next(bootstrap.resamples(len(LENGTHS_WITH), 1, seed=5)), minlength=len(LENGTHS_WITH))
        weighted = ranking_score(metric, true, columns, np.repeat(times, LENGTHS_WITH))
        assert statistic.scores(times[None].astype(float)) == pytest.approx(weighted, rel=1e-9)
        assert score.to_dict()["ranking"][metric] == score.values[metric]
    assert f"rows without a vector, left out: {(~HAS_VECTOR).sum()}" in str(score)


def test_heads_with_class_scores_are_ranked_if_there_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = CLASS_SCORES[HAS_VECTOR]
    arrays = {"rows": np.arange(N_ROWS), "documents": np.repeat(np.arange(len(LENGTHS)), LENGTHS), "source": None}
    rows = LabelledRows(Level.WORD, labels=LABELS[CLASSES], has_vector=HAS_VECTOR, n_total=N_ROWS, **arrays)
    for head, method in (("logreg", "predict_proba"), ("ridge", "decision_function")):
        probe = make_head(head).fit(vectors, LABELS[CLASSES][HAS_VECTOR])
        score = score_rows(probe, ArrayVectors(vectors, chunk_rows=7), rows, bootstrap=["auroc"])
        true, scores = np.eye(3)[CLASSES][HAS_VECTOR] > 0, getattr(probe, method)(vectors)
        for name in metrics.RANKING_METRICS:
            assert score.values[name] == pytest.approx(ranking_score(name, true, scores))
        assert score.scores.accuracy == np.sum(probe.predict(vectors) == LABELS[CLASSES][HAS_VECTOR]) / N_ROWS
        assert set(score.intervals) == {"auroc"}
    monkeypatch.setattr(scoring, "MOST_SCORES", vectors.size - 1)
    score = score_rows(probe, ArrayVectors(vectors), rows, bootstrap=True)
    assert "auroc" not in score.values
    assert f"left out: {vectors.size} scores of classes are more than {vectors.size - 1}" in str(score)


def test_expensive_scores_have_fewer_resamples() -> None:
    for n_read, n_drawn in ((2_000_000, 1000), (4_000_000, 500), (10**12, 100)):
        statistic = bootstrap.Statistic(3, 3, lambda weights: weights[:, 0], n_read=n_read)
        assert bootstrap.bootstrap(statistic).n_resamples == n_drawn


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(UserError, match="there are 1 rows to score; scores of numbers need two or more"):
        score_by("r2", NUMBERS[:1], NUMBERS[:1])
    with pytest.raises(UserError, match="a prediction is NaN or infinite"):
        score_by("r2", NUMBERS, NUMBERS * np.nan)
