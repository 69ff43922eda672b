"""Scores against scikit-learn and seqeval, and bootstrap intervals against a loop that scores every resample."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score as seqeval_f1
from sklearn import metrics as sk

from bertfeat.errors import UserError
from bertfeat.heads.base import check_labels
from bertfeat.heads.bootstrap import bootstrap, resamples
from bertfeat.heads.scores import Scores, label_statistic, pair_labels, score_by, score_pairs

pytestmark = pytest.mark.promise("probes")

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def score_labels(y_true: Any, y_pred: Any, classes: Any, lengths: Any = None, predicted: Any = None) -> Scores:
    return score_pairs(pair_labels(y_true, y_pred, predicted), classes, lengths)


def rows_of(labels: list[Any]) -> st.SearchStrategy[list[tuple[Any, Any]]]:
    """Return true and predicted labels of rows, half of them right."""
    label = st.sampled_from(labels)
    return st.lists(st.tuples(label, label) | label.map(lambda one: (one, one)), min_size=1, max_size=40)


def random_tags(n_sequences: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true and predicted tags end to end, and the lengths of sequences, some of them empty."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 12, n_sequences)
    n_rows = int(lengths.sum())
    truth = np.array(TAGS)[random.integers(0, len(TAGS), n_rows)]
    guesses = np.where(random.random(n_rows) < 0.7, truth, np.array(TAGS)[random.integers(0, len(TAGS), n_rows)])
    return truth, guesses, lengths


def nested(flat: np.ndarray, lengths: np.ndarray) -> list[list[str]]:
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])]


@settings(max_examples=40, deadline=None)
@given(rows_of(["a", "b", "c", "d", "not in training"]) | rows_of([0, 1, 2, 30]) | rows_of([True, False]))
def test_scores_are_scikit_learns(rows: list[tuple[Any, Any]]) -> None:
    y_true, y_pred = (list(column) for column in zip(*rows, strict=True))
    scores = score_labels(y_true, y_pred, ["a", "b", "c", "d"] if isinstance(y_true[0], str) else [0, 1, 2])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes|A single label was found", UserWarning)
        report = sk.classification_report(y_true, y_pred, output_dict=True, zero_division=0)
        labels = sorted({*y_true, *y_pred})
        matrix = sk.confusion_matrix(y_true, y_pred, labels=labels)
        assert scores.accuracy == pytest.approx(sk.accuracy_score(y_true, y_pred))
        macro = sk.f1_score(y_true, y_pred, average="macro", zero_division=0)
        assert [scores.macro_f1, score_by("macro_f1", np.array(y_true), np.array(y_pred))] == pytest.approx([macro] * 2)
    assert list(scores.per_class) == list(scores.confusion.labels) == labels
    for label, (precision, recall, f1, support) in scores.per_class.items():
        theirs = report[str(label)]
        assert (precision, recall, f1, support) == pytest.approx(
            (theirs["precision"], theirs["recall"], theirs["f1-score"], theirs["support"])
        )
    assert scores.confusion.matrix.tolist() == matrix.tolist()
    assert scores.confusion.unpredicted.tolist() == [0] * len(labels)
    unseen = {label: y_true.count(label) for label in ("not in training", 30) if label in y_true}
    assert scores.unseen_labels == unseen
    assert scores.entities is None


@settings(max_examples=30, deadline=None)
@given(rows_of(["a", "b", "c"]), st.data())
def test_rows_without_a_prediction_are_errors(rows: list[tuple[str, str]], data: st.DataObject) -> None:
    y_true, y_pred = (list(column) for column in zip(*rows, strict=True))
    has_guess = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    scores = score_labels(y_true, np.array(y_pred), ["a", "b", "c"], predicted=np.array(has_guess))
    # For scikit-learn, a prediction that is not one of the labels.
    replaced = [guess if known else "none" for guess, known in zip(y_pred, has_guess, strict=True)]
    labels = sorted({*y_true, *(set(replaced) - {"none"})})
    assert scores.accuracy == pytest.approx(sk.accuracy_score(y_true, replaced))
    assert scores.macro_f1 == pytest.approx(
        sk.f1_score(y_true, replaced, labels=labels, average="macro", zero_division=0)
    )
    assert list(scores.per_class) == labels
    assert scores.n_without_vector == has_guess.count(False)
    supports = scores.confusion.matrix.sum(axis=1) + scores.confusion.unpredicted
    assert supports.tolist() == [y_true.count(label) for label in labels]


def test_sequences_have_entity_scores_where_labels_are_tags() -> None:
    truth, guesses, lengths = random_tags(50, seed=1)
    scores = score_labels(truth, guesses, TAGS, lengths=lengths)
    assert scores.entities is not None
    expected = seqeval_f1(nested(truth, lengths), nested(guesses, lengths))
    assert scores.value("entity_f1") == scores.entities.f1 == pytest.approx(expected)
    assert scores.accuracy == pytest.approx(sk.accuracy_score(truth, guesses))
    parts_of_speech = score_labels(["NOUN", "X"], ["NOUN", "NOUN"], ["NOUN", "X"], lengths=[1, 1])
    assert parts_of_speech.entities is None


def test_words_without_a_vector_are_outside_of_entities() -> None:
    truth = ["B-PER", "I-PER", "O", "B-LOC"]
    scores = score_labels(truth, truth, TAGS, lengths=[3, 1], predicted=np.array([True, False, True, False]))
    assert scores.entities is not None
    assert (scores.entities.n_true, scores.entities.n_predicted, scores.entities.n_correct) == (2, 1, 0)
    assert scores.accuracy == 0.5
    assert scores.n_without_vector == 2


@pytest.mark.parametrize(
    ("y_true", "y_pred", "classes", "said"),
    [
        (["a", None], ["a", "a"], ["a"], r"y_true\[1\] is null; leave out rows without a label"),
        (["1", "2"], [1, 2], ["1", "2"], "y_true holds labels such as '1', y_pred such as 1; give the label col"),
    ],
)
def test_what_cannot_be_scored_is_refused(y_true: Any, y_pred: Any, classes: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        score_labels(y_true, y_pred, classes)


def naive_interval(score: Callable[[np.ndarray], float], n_units: int) -> tuple[float, float]:
    """Score every resample of `resamples`."""
    values = [score(units) for units in resamples(n_units, 60, seed=0)]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


SKLEARN: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": sk.accuracy_score,
    "macro_f1": lambda t, p: sk.f1_score(t, p, average="macro", zero_division=0),
}


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "entity_f1"])
def test_intervals_of_sequences_draw_whole_sequences(metric: str) -> None:
    truth, guesses, lengths = random_tags(40, seed=4)
    found = bootstrap(label_statistic(metric, pair_labels(truth, guesses), lengths), n_resamples=60)
    true_parts, pred_parts = ([part for part in nested(flat, lengths) if part] for flat in (truth, guesses))

    def score(units: np.ndarray) -> float:
        t, p = ([parts[i] for i in units] for parts in (true_parts, pred_parts))
        return seqeval_f1(t, p) if metric == "entity_f1" else SKLEARN[metric](np.concatenate(t), np.concatenate(p))

    expected = naive_interval(score, len(true_parts))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.n_units == len(true_parts) < len(lengths)


def test_labels_of_several_kinds_are_not_made_text() -> None:
    with pytest.raises(UserError, match=r"y holds values of type int, str; .* all of one kind"):
        check_labels(["a", 1])
