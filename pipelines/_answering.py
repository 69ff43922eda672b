"""Questions of SQuAD files, models that answer them by spans, and scores by the official scripts."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import transformers

from bertfeat.errors import UserError
from bertfeat.pipelines._training import Settings, TaskModel, freeze, make_trainer, rows_of, train
from bertfeat.records import BoolArray, Float32Array, Float64Array, IntArray

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_N_RESAMPLES = 1000
_BOUNDS = (0.025, 0.975)


class Question(NamedTuple):
    """A question about a paragraph of an article, with the start and the end of each right answer in the paragraph."""

    id: str
    text: str
    context: str
    article: int
    answers: tuple[tuple[int, int], ...]


class Prediction(NamedTuple):
    """The answer to a question: `context[start:end]`, 0 to 0 for no answer; better ones have a higher `score`."""

    id: str
    answer: str
    start: int
    end: int
    score: float
    no_answer_score: float | None = None


class _Answer(msgspec.Struct):
    text: str
    answer_start: int


class _Entry(msgspec.Struct):
    id: str | int
    question: str
    answers: list[_Answer] = []
    is_impossible: bool = False


class Paragraph(msgspec.Struct):
    """A paragraph of a file, and its questions."""

    context: str
    qas: list[_Entry]


class _Article(msgspec.Struct):
    paragraphs: list[Paragraph]


class _File(msgspec.Struct):
    data: list[_Article]


def read_articles(path: str | Path) -> list[list[Paragraph]]:
    """Return the paragraphs of each article of a file in the format of SQuAD 1.1 or 2.0."""
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=_File)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UserError(f"{path}: not a SQuAD file ({error}); pass a file such as train-v1.1.json") from error
    return [article.paragraphs for article in file.data]


def read_squad(path: str | Path) -> list[Question]:
    """Return the questions of a file in the format of SQuAD 1.1 or 2.0."""
    questions = [
        _question(path, number, paragraph.context, entry)
        for number, article in enumerate(read_articles(path))
        for paragraph in article
        for entry in paragraph.qas
    ]
    if not questions or len({question.id for question in questions}) < len(questions):
        raise UserError(f"{path}: its questions lack or share ids; pass a SQuAD file with questions of different ids")
    return questions


def _question(path: str | Path, article: int, context: str, entry: _Entry) -> Question:
    spans = []
    for answer in entry.answers:
        start, text = answer.answer_start, answer.text
        found = context[max(0, start) : start + len(text)]
        if start < 0 or not text.strip() or found != text:
            raise UserError(
                f"{path}: question {entry.id!r}: its paragraph has {found!r:.60} at answer_start {start}, "
                f"not {text!r:.60}; correct the file"
            )
        # Whitespace around an answer is of no token, and of no score.
        start += len(text) - len(text.lstrip())
        spans.append((start, start + len(text.strip())))
    if not spans and not entry.is_impossible:
        raise UserError(f"{path}: question {entry.id!r} has no answer; add one, or is_impossible: true")
    return Question(str(entry.id), entry.question, context, article, tuple(spans))


def hold_out_articles(questions: Sequence[Question], n: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Return the questions about all but some articles, which are drawn at random, and those about these."""
    articles = np.unique([question.article for question in questions])
    drawn = set(np.random.default_rng(seed).permutation(articles)[:n].tolist())
    rest = [question for question in questions if question.article not in drawn]
    return rest, [question for question in questions if question.article in drawn]


def normalized(text: str) -> str:
    """Return a text as the official scripts compare it: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def f1(answer: str, truth: str, *, no_answers: bool = False) -> float:
    """Return the F1 of the words of two texts; with `no_answers`, two texts without words agree, as in version 2.0."""
    found, wanted = normalized(answer).split(), normalized(truth).split()
    if no_answers and not (found and wanted):
        return float(found == wanted)
    n_same = sum((Counter(found) & Counter(wanted)).values())
    return 2 * n_same / (len(found) + len(wanted)) if n_same else 0.0


def score_each(questions: Sequence[Question], answers: Mapping[str, str]) -> Float64Array:
    """Return the exact match and the F1 of each question, (n_questions, 2), the best over its right answers."""
    no_answers = has_unanswerable(questions)
    scores = []
    for question in questions:
        truths = [question.context[start:end] for start, end in question.answers]
        if no_answers:
            truths = [truth for truth in truths if normalized(truth)] or [""]
        answer = answers[question.id]
        exact = max(float(normalized(answer) == normalized(truth)) for truth in truths)
        scores.append((exact, max(f1(answer, truth, no_answers=no_answers) for truth in truths)))
    return np.array(scores)


def has_unanswerable(questions: Iterable[Question]) -> bool:
    """Return whether a question has no answer."""
    return any(not question.answers for question in questions)


def summarize(questions: Sequence[Question], answers: Mapping[str, str], seed: int) -> dict[str, Any]:
    """Return mean scores in percent, with bootstrap intervals for which whole articles are drawn."""
    from bertfeat.heads.bootstrap import resamples

    names = ("exact_match", "f1")
    scores = 100 * score_each(questions, answers)
    summary: dict[str, Any] = dict(zip(names, scores.mean(axis=0).tolist(), strict=True))
    answerable = np.array([bool(question.answers) for question in questions])
    for name, chosen in (("answerable", answerable), ("unanswerable", ~answerable)):
        if chosen.any() and not answerable.all():
            means = scores[chosen].mean(axis=0).tolist()
            summary[name] = {"n_questions": int(chosen.sum()), **dict(zip(names, means, strict=True))}
    articles, unit = np.unique([question.article for question in questions], return_inverse=True)
    sums = np.zeros((len(articles), 3))
    np.add.at(sums, unit, np.column_stack([scores, np.ones(len(scores))]))
    drawn = np.array([sums[units].sum(axis=0) for units in resamples(len(articles), _N_RESAMPLES, seed)])
    bounds = np.quantile(drawn[:, :2] / drawn[:, 2:], _BOUNDS, axis=0)
    for name, interval in zip(names, bounds.T.tolist(), strict=True):
        summary[f"{name}_interval"] = interval if len(articles) > 1 else None
    return summary


def best_sentence(question: Question) -> Prediction:
    """Answer with the sentence of the paragraph that has the most words of the question; the first of several."""
    words = set(normalized(question.text).split())
    gaps = [found.span() for found in _BETWEEN_SENTENCES.finditer(question.context)]
    borders = [0, *(place for gap in gaps for place in gap), len(question.context)]
    spans = list(zip(borders[::2], borders[1::2], strict=True))
    counts = [len(words & set(normalized(question.context[start:end]).split())) for start, end in spans]
    start, end = spans[int(np.argmax(counts))]
    return Prediction(question.id, question.context[start:end], start, end, float(max(counts)))


class Window(NamedTuple):
    """A question with its paragraph, or a part of it, as tokens: arrays (n_tokens,), and what a model reads."""

    question: Question
    # In characters of the paragraph.
    starts: IntArray
    ends: IntArray
    in_paragraph: BoolArray
    # Of several windows with a token, an answer may start there only in the one with most context.
    may_start: BoolArray
    # The first and the last token of the first answer; (-1, -1) where the window does not have all of it.
    place: tuple[int, int]
    inputs: dict[str, Any]


def best_answers(
    questions: Sequence[Question], windows: Sequence[Window], logits: Any, max_tokens: int, *, no_answers: bool
) -> list[Prediction]:
    """Return the best answer of each question, by `logits` of starts and ends, both (n_windows, n_tokens or more)."""
    best: dict[str, tuple[float, int, int]] = {}
    empty: dict[str, float] = {}
    for window, *both in zip(windows, *logits, strict=True):
        name, scores = window.question.id, np.stack(both, axis=1)[: len(window.starts)]
        score, first, last = best_span(scores, window.in_paragraph, window.may_start, max_tokens)
        found = (score, int(window.starts[first]), int(window.ends[last]))
        best[name] = max(best.get(name, (-np.inf, 0, 0)), found, key=lambda one: one[0])
        empty[name] = min(empty.get(name, np.inf), float(scores[0].sum()))
    predictions = []
    for question in questions:
        score, start, end = best[question.id]
        against = empty[question.id] if no_answers else None
        if np.isneginf(score) or (against is not None and against > score):
            start = end = 0
        # Some tokenizers count the space before a word.
        start += len(question.context[start:end]) - len(question.context[start:end].lstrip())
        predictions.append(Prediction(question.id, question.context[start:end], start, end, score, against))
    return predictions


def learn(
    opened: TaskModel, splits: Mapping[str, Any], settings: Settings, output: Path, max_tokens: int, frozen: str | None
) -> tuple[list[Prediction], dict[str, Any]]:
    """Train a model on `train`, keep the epoch with the best F1 on `chosen_on`; return answers to `dev`, a report."""
    if frozen is not None:
        freeze(opened, frozen)
    max_length = opened.checkpoint.max_length
    windows = {name: cut_questions(part, opened.tokenizer, max_length) for name, part in splits.items()}
    inputs = {name: [window.inputs for window in part] for name, part in windows.items()}
    learned = {name: splits[name] for name in ("train", "chosen_on")}
    no_answers = any(map(has_unanswerable, learned.values()))

    def answers(name: str, predicted: Any) -> list[Prediction]:
        return best_answers(splits[name], windows[name], predicted.predictions, max_tokens, no_answers=no_answers)

    def score(predicted: Any) -> float:
        found = {one.id: one.answer for one in answers("chosen_on", predicted)}
        return float(score_each(splits["chosen_on"], found)[:, 1].mean())

    trainer = make_trainer(
        opened.model,
        inputs["train"],
        settings,
        output,
        collator=transformers.DataCollatorWithPadding(opened.tokenizer),
        made_of=[opened.checkpoint.weights_sha256, [max_length, max_tokens, frozen], [*learned.values()]],
        dev=inputs["chosen_on"] or None,
        score=score,
    )
    history = train(trainer)
    predictions = answers("dev", trainer.predict(inputs["dev"]))
    return predictions, {**asdict(history), "n_examples": len(inputs["train"])}


def best_span(scores: Float32Array, inside: BoolArray, may_start: BoolArray, max_tokens: int) -> tuple[float, int, int]:
    """Return the highest sum of start and end (n_tokens, 2), -infinity without a span, and the first and last token."""
    max_tokens = min(max_tokens, len(scores))
    starts = np.where(inside & may_start, scores[:, 0], -np.inf)
    ends = np.append(np.where(inside, scores[:, 1], -np.inf), np.full(max_tokens - 1, -np.inf))
    sums = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, max_tokens)
    first, more = np.unravel_index(int(np.argmax(sums)), sums.shape)
    return float(sums[first, more]), int(first), int(first + more)


def cut_questions(questions: Sequence[Question], tokenizer: Any, max_length: int) -> list[Window]:
    """Return the windows of questions with their paragraphs, each with the whole question."""
    if not questions:
        return []
    stride = max_length // 4
    n_tokens = [len(ids) for ids in tokenizer([one.text for one in questions], add_special_tokens=False)["input_ids"]]
    if max(n_tokens) + tokenizer.num_special_tokens_to_add(pair=True) + stride >= max_length:
        raise UserError(f"a question has {max(n_tokens)} tokens; the model takes {max_length}: shorten it")
    encoded = tokenizer(
        [one.text for one in questions],
        [one.context for one in questions],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    of, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
    inputs, windows = rows_of(encoded), []
    for number, (before, row, after) in enumerate(zip([None, *of], of, [*of[1:], None], strict=False)):
        is_first, is_last = before != row, after != row
        starts, ends = np.array(offsets[number]).T
        in_paragraph = np.array([text == 1 for text in encoded.sequence_ids(number)]) & (ends > starts)
        # The border of two windows is the middle of their overlap.
        inside, may_start = np.flatnonzero(in_paragraph), in_paragraph.copy()
        may_start[inside[: 0 if is_first else (stride + 1) // 2]] = False
        may_start[inside[len(inside) if is_last else len(inside) - stride // 2 :]] = False
        start, end = next(iter(questions[row].answers), (0, 0))
        hit = inside[(starts[inside] < end) & (ends[inside] > start)]
        is_whole = len(hit) > 0 and not (
            (hit[0] == inside[0] and starts[hit[0]] > start and not is_first)
            or (hit[-1] == inside[-1] and ends[hit[-1]] < end and not is_last)
        )
        place = (int(hit[0]), int(hit[-1])) if is_whole else (-1, -1)
        inputs[number]["start_positions"], inputs[number]["end_positions"] = np.maximum(place, 0).tolist()
        windows.append(Window(questions[row], starts, ends, in_paragraph, may_start, place, inputs[number]))
    return windows
