"""The recipe for questions about paragraphs: scores, spans, windows, and tasks that are learned."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import transformers

from bertfeat.errors import UserError
from bertfeat.pipelines._answering import (
    Question,
    Window,
    best_answers,
    best_span,
    cut_questions,
    f1,
    normalized,
    read_squad,
    summarize,
)
from tests.support.pipeline_runs import result_of
from tests.support.places import TESTS

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("one_thread", "no_fsync")]

XQUAD = TESTS / "data" / "xquad_en" / "xquad.en.json"
# Paragraph -> question -> answer; None for a question without one.
Facts = Mapping[str, Mapping[str, str | None]]
FACTS: Facts = {
    "She sells sea shells by the sea shore, and he buys them for 42 pounds.": {
        "she sells?": "sea shells",
        "he buys them for?": "42 pounds",
    },
    "The quick brown fox jumps over the lazy dog near the river bank.": {
        "the fox jumps over?": "the lazy dog",
        "the dog near?": "the river bank",
    },
}
UNANSWERABLE: Facts = {
    "Extract once, probe many times: features are cheap when stored well!": {"the fox?": None, "the dog?": None}
}
GOOD = {"id": "q7", "question": "Who?", "answers": [{"text": "cat", "answer_start": 2}]}
LEARN = ("--head-epochs", 2, "--batch-size", 1, "--with-finetuning", "--epochs", 25, "--learning-rate", 0.004)


def squad(facts: Facts, version: str = "1.1") -> dict[str, Any]:
    """Return questions in the format of SQuAD, each paragraph in an article of its own."""
    numbers = itertools.count()
    articles = []
    for context, pairs in facts.items():
        entries = []
        for question, answer in pairs.items():
            truth = [] if answer is None else [{"text": answer, "answer_start": context.index(answer)}]
            entry = {"id": f"q{next(numbers)}", "question": question, "answers": truth}
            entries.append(entry if truth else {**entry, "is_impossible": True})
        articles.append({"title": "", "paragraphs": [{"context": context, "qas": entries}]})
    return {"version": version, "data": articles}


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


class TestScores:
    @pytest.mark.parametrize(
        ("answer", "truth", "exact", "overlap", "overlap_2"),
        [
            ("1976", "1976", 1, 1, 1),
            ("the  Cat", "cat!", 1, 1, 1),
            ("Denver Broncos", "The Denver Broncos of Colorado", 0, 2 / 3, 2 / 3),
            ("to to", "to", 0, 2 / 3, 2 / 3),  # words count as often as they occur in both
            ("24\N{EN DASH}10", "24-10", 0, 0, 0),  # only ASCII punctuation is removed
            ("a", "The.", 1, 0, 1),  # version 1.1 gives no F1 without words
            ("", "cat", 0, 0, 0),
            ("", "", 1, 0, 1),
        ],
    )
    def test_cases_of_the_official_scripts(
        self, answer: str, truth: str, exact: float, overlap: float, overlap_2: float
    ) -> None:
        assert (normalized(answer) == normalized(truth)) == exact
        assert f1(answer, truth) == pytest.approx(overlap)
        assert f1(answer, truth, no_answers=True) == pytest.approx(overlap_2)

    def test_the_best_of_several_answers_counts_and_articles_are_drawn(self) -> None:
        context = "Super Bowl L was played in 2016."
        several = Question("a", "Which?", context, 0, ((0, 12), (11, 12)))
        other = Question("b", "When?", context, 1, ((27, 31),))
        found = summarize([several, other], {"a": "L", "b": "in 2016"}, 0)
        assert (found["exact_match"], found["f1"]) == pytest.approx((50, 100 * (1 + 2 / 3) / 2))
        assert found["exact_match_interval"] == [0, 100]
        assert found["f1_interval"] == pytest.approx([200 / 3, 100])
        assert summarize([several], {"a": "L"}, 0)["f1_interval"] is None

    def test_no_answer_as_version_2_scores_it(self) -> None:
        context = "The dog."
        questions = [Question(name, "?", context, 0, spans) for name, spans in (("a", ((4, 7),)), ("b", ()), ("c", ()))]
        found = summarize(questions, {"a": "", "b": "", "c": "dog"}, 0)
        assert (found["exact_match"], found["f1"]) == pytest.approx((100 / 3, 100 / 3))
        assert found["answerable"] == {"n_questions": 1, "exact_match": 0, "f1": 0}
        assert found["unanswerable"] == {"n_questions": 2, "exact_match": 50, "f1": 50}


@pytest.mark.parametrize(
    ("context", "entries", "message"),
    [
        ("", [], "its questions lack or share ids"),
        ("A cat.", [GOOD, GOOD], "its questions lack or share ids"),
        ("A dog.", [GOOD], "question 'q7': its paragraph has 'dog' at answer_start 2, not 'cat'"),
        ("A cat.", [{**GOOD, "answers": []}], "question 'q7' has no answer"),
        ("A cat.", [{"question": "Who?"}], r"not a SQuAD file \(Object missing required field `id` - at"),
    ],
)
def test_a_wrong_file_is_named_with_its_question(
    context: str, entries: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.json", {"data": [{"paragraphs": [{"context": context, "qas": entries}]}]})
    with pytest.raises(UserError, match=message):
        read_squad(path)


class TestSpans:
    def test_the_best_span_is_that_of_all(self) -> None:
        random = np.random.default_rng(0)
        for n_tokens, max_tokens in itertools.product((1, 2, 7, 12), (1, 3, 20, 10**12)):
            scores = random.normal(size=(n_tokens, 2)).astype(np.float32)
            inside, may_start = random.random((2, n_tokens)) < 0.7
            spans = {
                (first, last): scores[first, 0] + scores[last, 1]
                for first in np.flatnonzero(inside & may_start)
                for last in np.flatnonzero(inside)
                if first <= last < first + max_tokens
            }
            score, first, last = best_span(scores, inside, may_start, max_tokens)
            if spans:
                assert (first, last) == max(spans, key=lambda pair: spans[pair])
                assert score == pytest.approx(spans[first, last], rel=1e-6)
            else:
                assert score == -np.inf

    def test_windows_have_the_answer_whole_or_not_at_all(self, tiny_folder: Path) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder)
        context = " ".join(FACTS)
        spans = [(start, end) for start in range(0, 130, 6) for end in (start + 4, start + 30)]
        spans = [(start, end) for start, end in spans if context[start:end] == context[start:end].strip()]
        assert len(spans) > 10
        questions = [Question(f"{pair}", "she sells?", context, 0, (pair,)) for pair in spans]
        whole = cut_questions(questions, tokenizer, 512)
        assert [window.question for window in whole] == questions
        by_id = {window.question.id: window for window in whole}
        cut = cut_questions(questions, tokenizer, 24)
        assert len(cut) > 3 * len(questions)
        n_starts = dict.fromkeys(by_id, 0)
        for window in cut:
            other, (first, last) = by_id[window.question.id], window.place
            n_starts[window.question.id] += int(window.may_start.sum())
            expected = other.starts[other.place[0]], other.ends[other.place[1]]
            if first >= 0:
                assert (window.starts[first], window.ends[last]) == expected
                assert last - first == other.place[1] - other.place[0]
            else:
                # Some token of the answer is not in the window.
                inside = window.in_paragraph
                assert window.starts[inside].min() > expected[0] or window.ends[inside].max() < expected[1]
            assert window.inputs["start_positions"] == max(first, 0)
        # An answer may start at each token of the paragraph once.
        assert set(n_starts.values()) == {int(whole[0].in_paragraph.sum())}

    def test_of_several_windows_the_best_span_counts(self) -> None:
        question = Question("q", "?", "one two three", 0, ())
        starts, ends = np.array([[0, 0, 4], [0, 4, 8]]), np.array([[0, 3, 7], [0, 7, 13]])
        may_start = np.array([[True, True, True], [False, False, True]])
        windows = [Window(question, starts[n], ends[n], ends[n] > 0, may_start[n], (-1, -1), {}) for n in range(2)]
        scores = np.zeros((2, 2, 3), np.float32)  # starts and ends of both windows
        scores[:, 0, 2], scores[:, 1, 2], scores[:, 1, 1] = 1, 2, 9  # "two" may start in the first window only
        (found,) = best_answers([question], windows, scores, 30, no_answers=False)
        assert (found.answer, found.score, found.no_answer_score) == ("three", 4, None)
        scores[:, 0, 0] = 5
        (found,) = best_answers([question], windows, scores, 30, no_answers=True)
        assert (found.answer, found.no_answer_score) == ("three", 0), "each window must say that there is no answer"
        scores[:, 1, 0] = 3
        (found,) = best_answers([question], windows, scores, 30, no_answers=True)
        assert (found.answer, found.start, found.end, found.score, found.no_answer_score) == ("", 0, 0, 4, 6)


class TestRuns:
    def test_a_small_task_is_learned_with_and_without_answers(self, tiny_folder: Path, tmp_path: Path) -> None:
        path = written(tmp_path / "q.json", squad({**FACTS, **UNANSWERABLE}, "v2.0"))
        asked = ("--corpus", path, "--dev", path, "--model", tiny_folder, *LEARN)
        found = result_of(tmp_path / "out", "question_answering", *asked)
        rows = {row["answers_by"]: row for row in found["rows"]}
        assert list(rows) == ["sentence", "frozen", "finetuned"]
        assert rows["finetuned"]["exact_match"] == 100
        assert [row["training"]["n_examples"] for row in found["rows"][1:]] == [6, 6]
        assert rows["finetuned"]["unanswerable"] == {"n_questions": 2, "exact_match": 100, "f1": 100}
        assert (found["unanswerable"], found["official_script"]) == (True, "2.0")
        assert found["n_dev_questions_on_train_paragraphs"] == 6
        questions = {question.id: question for question in read_squad(path)}
        for name, row in rows.items():
            frame = pl.read_parquet(tmp_path / "out" / "predictions" / f"{name}.parquet")
            assert frame["id"].to_list() == list(questions)
            for number, answer, start, end, *_ in frame.iter_rows():
                assert questions[number].context[start:end] == answer
            texts = json.loads((tmp_path / "out" / "predictions" / f"{name}.json").read_text("utf-8"))
            assert texts == dict(zip(frame["id"], frame["answer"], strict=True))
            scores = summarize([*questions.values()], texts, 0)
            assert (scores["exact_match"], scores["f1"]) == pytest.approx((row["exact_match"], row["f1"]))
        assert "| finetuned | 100.0 | 100.0 | 100.0 to 100.0 |" in (tmp_path / "out" / "table.md").read_text("utf-8")
        assert {one.name for one in (tmp_path / "out").iterdir()} == {"model", "predictions", "result.json", "table.md"}

    def test_articles_are_held_out_for_dev_and_for_the_epoch(self, tiny_folder: Path, tmp_path: Path) -> None:
        names = ("fox", "dog", "cat", "owl", "bee", "ant", "cow", "hen", "pig", "rat", "elk", "cod", "doe")
        facts: Facts = {f"The {name} jumps over the river bank.": {"the fox jumps?": f"The {name}"} for name in names}
        path = written(tmp_path / "q.json", squad(facts))
        asked = ("--corpus", path, "--model", tiny_folder, "--head-epochs", 2)
        found = result_of(tmp_path / "out", "question_answering", *asked)
        assert found["n_questions"] == {"train": 10, "chosen_on": 1, "dev": 2}
        assert found["n_dev_questions_on_train_paragraphs"] == 0
        assert len(found["rows"][1]["training"]["scores"]) == 2
