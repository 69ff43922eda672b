"""The recipe for questions about paragraphs: scores, spans, windows, and tasks that are learned."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import bertfeat
from bertfeat.errors import UserError
from bertfeat.heads.networks import Network, RowByRow
from bertfeat.pipelines import _training
from bertfeat.pipelines._answering import PaddedBiLSTM, SpanHead
from bertfeat.pipelines._spans import Sequences, best_span, stored_sequences, window_sequences
from bertfeat.pipelines._squad import (
    Question,
    best_sentence,
    exact_match,
    f1,
    hold_out_articles,
    read_squad,
    summarize,
)
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.vectors.standardized import Scaling
from tests.support.families import build_model
from tests.support.pipeline_runs import refusal, result_of
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
LEARN = ("--head-epochs", 15, "--head-learning-rate", 0.05, "--hidden-size", 16, "--batch-size", 1, "--layers", "0..3")
FINETUNE = ("--with-finetuning", "--epochs", 25, "--learning-rate", 0.004)


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


def check_predictions(folder: Path, questions: Sequence[Question], rows: Sequence[Mapping[str, Any]]) -> None:
    """Check that each answer is the text at its place, and that the scores are those of the official JSON."""
    context = {question.id: question.context for question in questions}
    for row in rows:
        stem = folder / "predictions" / row["answers_by"]
        frame = pl.read_parquet(stem.with_suffix(".parquet"))
        assert frame["id"].to_list() == [question.id for question in questions]
        for name, answer, start, end, *_ in frame.iter_rows():
            assert context[name][start:end] == answer
        texts = json.loads(stem.with_suffix(".json").read_text("utf-8"))
        assert texts == dict(zip(frame["id"], frame["answer"], strict=True))
        found = summarize(questions, texts, 0)
        assert (found["exact_match"], found["f1"]) == pytest.approx((row["exact_match"], row["f1"]))


class TestScores:
    @pytest.mark.parametrize(
        ("answer", "truth", "exact", "overlap", "overlap_2"),
        [
            ("1976", "1976", 1, 1, 1),
            ("1999", "1976", 0, 0, 0),
            ("the  Cat", "cat!", 1, 1, 1),
            ("Denver Broncos", "The Denver Broncos of Colorado", 0, 2 / 3, 2 / 3),
            ("to to", "to", 0, 2 / 3, 2 / 3),  # words count as often as they occur in both
            ("don't", "dont", 1, 1, 1),
            ("24\N{EN DASH}10", "24-10", 0, 0, 0),  # only ASCII punctuation is removed
            ("theatre", "the atre", 0, 0, 0),
            ("a", "The.", 1, 0, 1),  # version 1.1 gives no F1 without words
            ("", "cat", 0, 0, 0),
            ("", "", 1, 0, 1),
            ("Beyonce", "Beyoncé and Bruno Mars", 0, 0, 0),
        ],
    )
    def test_cases_of_the_official_scripts(
        self, answer: str, truth: str, exact: float, overlap: float, overlap_2: float
    ) -> None:
        assert exact_match(answer, truth) == exact
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


class TestReading:
    def test_xquad(self) -> None:
        questions = read_squad(XQUAD)
        assert len(questions) == 90
        assert len({question.article for question in questions}) == 4
        assert all(question.answers for question in questions)
        for question in questions:
            found = best_sentence(question)
            assert question.context[found.start : found.end] == found.answer
            assert found.end < len(question.context) or found.answer.endswith(question.context[-5:])

    def test_a_wrong_file_is_one_line(self, tmp_path: Path) -> None:
        good = {"id": "q7", "question": "Who?", "answers": [{"text": "cat", "answer_start": 2}]}
        for entry, context, message in [
            (None, "", r"has no questions"),
            (good, "A dog.", r"question 'q7': its paragraph has 'dog' at answer_start 2, not 'cat'"),
            ({**good, "answers": [{"text": "cat", "answer_start": -4}]}, "A cat.", r"at answer_start -4"),
            ({**good, "answers": []}, "A cat.", r"question 'q7' has no answer"),
            ({**good, "question": None}, "A cat.", r"not a SQuAD file \(TypeError: question 'q7'"),
            (good, " ", r"question 'q7': its paragraph is empty"),
            ({"question": "Who?"}, "A cat.", r"not a SQuAD file \(KeyError: 'id'\)"),
        ]:
            entries = [] if entry is None else [entry]
            path = written(tmp_path / "a.json", {"data": [{"paragraphs": [{"context": context, "qas": entries}]}]})
            with pytest.raises(UserError, match=message):
                read_squad(path)
        with pytest.raises(UserError, match="2 questions have the id 'q7'"):
            read_squad(written(path, {"data": [{"paragraphs": [{"context": "A cat.", "qas": [good, good]}]}]}))
        for content in ([1], {"data": 1}, {"rows": []}):
            with pytest.raises(UserError, match="not a SQuAD file"):
                read_squad(written(path, content))
        path.write_bytes(b"id,question\n\xff")
        assert "not a SQuAD file" in refusal("question_answering", "--corpus", path, "--out", tmp_path / "out")
        asked = ("question_answering", "--corpus", written(path, squad(dict([next(iter(FACTS.items()))]))))
        assert "one article only; pass --dev" in refusal(*asked, "--out", tmp_path / "out")
        assert "--freeze is for fine-tuning" in refusal(*asked, "--out", tmp_path / "out", "--freeze", "0")
        assert not (tmp_path / "out").exists()


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
        tokenizer = Tokenizer.load(tiny_folder)
        context = " ".join(FACTS)
        spans = {
            pair: (start, end)
            for start in range(0, 130, 6)
            for end in (start + 4, start + 30)
            for pair in [(start, end)]
        }
        questions = [Question(f"{pair}", "she sells?", context, 0, (pair,)) for pair in spans]
        whole, _ = window_sequences(tokenizer, WindowLimits(512, 0), questions)
        assert whole.question.tolist() == list(range(len(questions)))
        cut, windows = window_sequences(tokenizer, WindowLimits(24, 8), questions)
        assert len(cut.question) > 3 * len(questions)
        n_tokens = np.diff(whole.places, axis=1)[:, 0] + 1
        for row, (first, last) in enumerate(cut.places.tolist()):
            question = int(cut.question[row])
            start = int(cut.starts[row])
            if first >= 0:
                assert last - first + 1 == n_tokens[question]
                expected = whole.starts[question] + whole.places[question]
                assert cut.char_start[start + first] == whole.char_start[expected[0]]
                assert cut.char_end[start + last] == whole.char_end[expected[1]]
            else:
                # Some token of the answer is not in the window.
                inside = slice(start, int(cut.starts[row + 1]))
                answer = questions[question].answers[0]
                overlaps = (cut.char_start[inside] < answer[1]) & (cut.char_end[inside] > answer[0])
                assert (overlaps & cut.in_paragraph[inside]).sum() < n_tokens[question]
        # An answer may start at each token of the paragraph once.
        starts = cut.in_paragraph & cut.may_start
        per_question = np.bincount(np.repeat(cut.question, cut.lengths)[starts])
        assert per_question.tolist() == [int(whole.in_paragraph.sum()) // len(questions)] * len(questions)
        assert (windows.type_ids[cut.in_paragraph] == 1).all()

    def test_a_store_has_the_tokens_of_whole_paragraphs(self, tiny_folder: Path, tmp_path: Path) -> None:
        questions = read_squad(written(tmp_path / "q.json", squad({**FACTS, **UNANSWERABLE})))
        rows = [{"id": one.id, "text": one.text, "other": one.context} for one in questions]
        (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        asked: dict[str, Any] = {"model": str(tiny_folder), "id_column": "id", "text_pair_column": "other"}
        store = bertfeat.extract(tmp_path / "q.jsonl", tmp_path / "s", layers=-1, max_length=20, stride=4, **asked)
        stored = stored_sequences(store, list(reversed(questions)))
        whole, _ = window_sequences(Tokenizer.load(tiny_folder), WindowLimits(512, 0), questions)
        assert stored.questions == questions
        for name in ("question", "starts", "char_start", "char_end", "in_paragraph", "may_start", "places"):
            assert np.array_equal(getattr(stored, name), getattr(whole, name)), name
        assert stored.places[-2:].tolist() == [[-1, -1]] * 2

    def test_of_several_windows_the_best_span_counts(self) -> None:
        question = Question("q", "?", "one two three", 0, ())
        ends = np.array([0, 3, 7, 0, 7, 13])
        sequences = Sequences(
            questions=[question],
            question=np.zeros(2, np.int64),
            starts=np.array([0, 3, 6]),
            source=np.array([-1, 0, 1, -1, 1, 2]),
            char_start=np.array([0, 0, 4, 0, 4, 8]),
            char_end=ends,
            in_paragraph=ends > 0,
            may_start=np.array([True, True, True, False, False, True]),
        )
        scores = [np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)]
        scores[0][2], scores[1][2], scores[1][1] = 1, 2, 9  # "two" may start in the first window only
        rows = np.arange(2)
        (found,) = sequences.answers(rows, scores, 30, no_answers=False)
        assert (found.answer, found.score, found.no_answer_score) == ("three", 4, None)
        scores[0][0] = 5
        (found,) = sequences.answers(rows, scores, 30, no_answers=True)
        assert (found.answer, found.no_answer_score) == ("three", 0), "each window must say that there is no answer"
        scores[1][0] = 3
        (found,) = sequences.answers(rows, scores, 30, no_answers=True)
        assert (found.answer, found.start, found.end, found.score, found.no_answer_score) == ("", 0, 0, 4, 6)

    def test_the_loss_of_a_head_is_that_of_a_softmax_over_the_paragraph(self) -> None:
        torch.manual_seed(0)
        output = nn.Linear(3, 2)
        head = SpanHead(Network(Scaling.identity(3), None, RowByRow(nn.Identity(), output)))
        vectors, lengths = torch.randn(9, 3), torch.tensor([4, 5])
        candidates = torch.tensor([0, 1, 1, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
        places = {"start_positions": torch.tensor([1, 3]), "end_positions": torch.tensor([2, 3])}
        loss = head(vectors, lengths, candidates, **places).loss.detach()
        scores = output(vectors).detach()
        logs = [part.log_softmax(0) for part in (scores[1:4], scores[6:9])]
        expected = -(logs[0][0, 0] + logs[0][1, 1] + logs[1][1, 0] + logs[1][1, 1]) / 4
        assert float(loss) == pytest.approx(float(expected), rel=1e-6)

    def test_the_padded_bilstm_is_that_of_torch(self) -> None:
        torch.manual_seed(0)
        body = PaddedBiLSTM(3, 4).eval()
        lstm = nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)
        for own, suffix in zip(body.lstms, ("l0", "l0_reverse", "l1", "l1_reverse"), strict=True):
            for name, values in own.state_dict().items():
                getattr(lstm, f"{name.removesuffix('l0')}{suffix}").data.copy_(values)
        lengths = np.array([4, 1, 6])
        vectors = torch.randn(11, 3)
        with torch.inference_mode():
            alone = [body.output(lstm(part[None])[0][0]) for part in vectors.split(lengths.tolist())]
            assert torch.allclose(body(vectors, lengths), torch.cat(alone), atol=1e-6)


class TestRuns:
    def test_a_small_task_is_learned_with_and_without_answers(self, tiny_folder: Path, tmp_path: Path) -> None:
        path = written(tmp_path / "q.json", squad({**FACTS, **UNANSWERABLE}, "v2.0"))
        asked = ("--corpus", path, "--dev", path, "--model", tiny_folder, *LEARN, *FINETUNE)
        found = result_of(tmp_path / "out", "question_answering", *asked)
        rows = {row["answers_by"]: row for row in found["rows"]}
        assert list(rows) == ["sentence", "linear", "bilstm", "finetuned"]
        assert {name: row["exact_match"] for name, row in rows.items()} == {
            "sentence": 0, "linear": 100, "bilstm": 100, "finetuned": 100,
        }  # fmt: skip
        assert [row["training"]["n_examples"] for row in found["rows"][1:]] == [6, 6, 6]
        assert rows["bilstm"]["unanswerable"] == {"n_questions": 2, "exact_match": 100, "f1": 100}
        assert (found["unanswerable"], found["official_script"]) == (True, "2.0")
        assert found["n_dev_questions_on_train_paragraphs"] == 6
        check_predictions(tmp_path / "out", read_squad(path), found["rows"])
        assert "| finetuned | 100.0 | 100.0 | 100.0 to 100.0 |" in (tmp_path / "out" / "table.md").read_text("utf-8")
        assert not list((tmp_path / "out").rglob("training.pt"))

    def test_a_killed_run_ends_with_the_same_result(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # RoBERTa has no segment ids.
        model = build_model("roberta", tmp_path / "roberta", num_hidden_layers=2, max_position_embeddings=66)
        path = written(tmp_path / "q.json", squad(FACTS))
        asked = (
            "--corpus",
            path,
            "--dev",
            path,
            "--model",
            model,
            *LEARN,
            "--max-length",
            24,
            "--head-epochs",
            4,
            "--layers",
            -1,
        )
        asked = (*asked, "--with-finetuning", "--epochs", 4, "--freeze", "0,1", "--save-every", 1, "--batch-size", 2)
        whole = result_of(tmp_path / "whole", "question_answering", *asked)
        save = _training._Checkpoint.save
        for n_saves in (3, 9, 5):
            counter = itertools.count(1)

            def dies(*arguments: Any, counter: Any = counter, n_saves: int = n_saves) -> None:
                save(*arguments)
                if next(counter) == n_saves:
                    raise KeyboardInterrupt

            monkeypatch.setattr(_training._Checkpoint, "save", dies)
            with pytest.raises(AssertionError, match="interrupted; run the same command again to resume"):
                result_of(tmp_path / "killed", "question_answering", *asked)
        monkeypatch.undo()
        again = result_of(tmp_path / "killed", "question_answering", *asked)
        for found in (whole, again):
            for row in found["rows"]:
                row.pop("seconds")
                (row["training"] or {}).pop("seconds", None)
        assert again == whole
        for name in ("linear", "bilstm", "finetuned"):
            files = [tmp_path / run / "predictions" / f"{name}.json" for run in ("whole", "killed")]
            assert files[0].read_bytes() == files[1].read_bytes()
        weights = [load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "killed")]
        assert all(torch.equal(values, weights[1][name]) for name, values in weights[0].items())
        original = load_file(model / "model.safetensors")
        key = next(name for name in weights[0] if "word_embeddings" in name)
        assert torch.equal(weights[0][key], next(v for name, v in original.items() if "word_embeddings" in name))

    def test_a_tenth_of_the_articles_chooses_the_epoch(self, tiny_folder: Path, tmp_path: Path) -> None:
        names = ("fox", "dog", "cat", "owl", "bee", "ant", "cow", "hen", "pig", "rat")
        facts: Facts = {f"The {name} jumps over the river bank.": {"the fox jumps?": f"The {name}"} for name in names}
        path = written(tmp_path / "q.json", squad(facts))
        chosen_on = hold_out_articles(read_squad(path), 1, 0)[1]
        # Answered after training, the same questions have the score of the epoch that was kept.
        dev = written(tmp_path / "dev.json", squad({one.context: facts[one.context] for one in chosen_on}))
        asked = ("--corpus", path, "--dev", dev, "--model", tiny_folder, *LEARN, "--head-epochs", 6, *FINETUNE)
        found = result_of(tmp_path / "out", "question_answering", *asked, "--epochs", 3)
        assert found["n_questions"] == {"train": 9, "chosen_on": 1, "dev": 1}
        for row in found["rows"][1:]:
            scores = row["training"]["scores"]
            assert len(scores) == row["training"]["epoch"]
            assert row["f1"] == pytest.approx(100 * max(scores))
            assert row["training"]["n_examples"] == 9

    def test_xquad(self, tmp_path: Path) -> None:
        asked = ("--corpus", XQUAD, "--limit", 16, "--layers", -1, "--head-epochs", 2, "--hidden-size", 8)
        found = result_of(tmp_path, "question_answering", *asked, "--device", "cpu")
        questions = {question.id: question for question in read_squad(XQUAD)}
        answered = pl.read_parquet(tmp_path / "predictions" / "sentence.parquet")["id"].to_list()
        assert len({questions[name].article for name in answered}) == 1, "a fifth of four articles, at least one"
        assert found["n_questions"] == {"train": 16 - len(answered), "chosen_on": 0, "dev": len(answered)}
        assert found["n_dev_questions_on_train_paragraphs"] == 0
        check_predictions(tmp_path, [questions[name] for name in answered], found["rows"])
        assert found["rows"][0]["f1"] > 0
        assert found["rows"][1]["n_bytes"] > 16 * 50 * 384 * 2
