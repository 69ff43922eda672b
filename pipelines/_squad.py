"""Questions of SQuAD files, and scores of answers by the official scripts, evaluate-v1.1.py and evaluate-v2.0.py."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bertfeat.errors import UserError
from bertfeat.records import Float64Array

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
    counts = Counter(question.id for question in questions).most_common(1)
    if not counts or counts[0][1] > 1:
        said = f"{counts[0][1]} questions have the id {counts[0][0]!r}" if counts else "has no questions"
        raise UserError(f"{path}: {said}; pass a SQuAD file with questions of different ids")
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


def hold_out_articles(
    questions: Sequence[Question], n_articles: int, seed: int
) -> tuple[list[Question], list[Question]]:
    """Return the questions about all but some articles, which are drawn at random, and those about these."""
    articles = np.unique([question.article for question in questions])
    drawn = set(np.random.default_rng(seed).permutation(articles)[:n_articles].tolist())
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
    from bertfeat.heads.scores import resamples

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
        # One article says nothing of others.
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
