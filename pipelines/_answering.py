"""Models that answer questions by spans, as Devlin et al. 2019 (arXiv 1810.04805v2, sections 4.2 and 4.3).

The best span has the highest sum of its scores as start and end; the first token, [CLS] in BERT, stands for no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import transformers

from bertfeat.errors import UserError
from bertfeat.pipelines._models import TaskModel, freeze, rows_of
from bertfeat.pipelines._squad import Prediction, Question, has_unanswerable, score_each
from bertfeat.pipelines._training import Settings, make_trainer, train
from bertfeat.records import BoolArray, Float32Array, IntArray


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
    questions: Sequence[Question],
    windows: Sequence[Window],
    logits: Sequence[Float32Array],
    max_tokens: int,
    *,
    no_answers: bool,
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
        # Question and paragraph may have no token, of a model without special tokens.
        score, start, end = best.get(question.id, (-np.inf, 0, 0))
        against = empty.get(question.id) if no_answers else None
        if np.isneginf(score) or (against is not None and against > score):
            start = end = 0
        # Some tokenizers count the space before a word.
        start += len(question.context[start:end]) - len(question.context[start:end].lstrip())
        predictions.append(Prediction(question.id, question.context[start:end], start, end, score, against))
    return predictions


def learn(
    opened: TaskModel,
    questions: Mapping[str, Sequence[Question]],
    settings: Settings,
    output: Path,
    *,
    max_length: int,
    max_answer_tokens: int,
    frozen: str | None,
) -> tuple[list[Prediction], dict[str, Any]]:
    """Train a model on `train`, keep the epoch with the best F1 on `chosen_on`; return answers to `dev`, and a report.

    Paragraphs that do not fit are read in overlapping windows; one without the answer is an example of no answer.
    """
    if frozen is not None:
        freeze(opened, frozen)
    windows = {name: cut_questions(part, opened.tokenizer, max_length) for name, part in questions.items()}
    inputs = {name: [window.inputs for window in part] for name, part in windows.items()}
    learned = {name: questions[name] for name in ("train", "chosen_on")}
    no_answers = any(map(has_unanswerable, learned.values()))

    def answers(name: str, predicted: Any) -> list[Prediction]:
        return best_answers(
            questions[name], windows[name], predicted.predictions, max_answer_tokens, no_answers=no_answers
        )

    def score(predicted: Any) -> float:
        found = {one.id: one.answer for one in answers("chosen_on", predicted)}
        return float(score_each(questions["chosen_on"], found)[:, 1].mean())

    trainer = make_trainer(
        opened.model,
        inputs["train"],
        settings,
        output,
        collator=transformers.DataCollatorWithPadding(opened.tokenizer),
        made_of=[
            opened.checkpoint.weights_sha256,
            [max_length, max_answer_tokens, frozen],
            list(learned.values()),
        ],
        dev=inputs["chosen_on"] or None,
        score=score,
    )
    history = train(trainer)
    predictions = answers("dev", trainer.predict(inputs["dev"]))
    return predictions, {**asdict(history), "n_examples": len(inputs["train"])}


def best_span(
    scores: Float32Array, in_paragraph: BoolArray, may_start: BoolArray, max_tokens: int
) -> tuple[float, int, int]:
    """Return the highest sum of start and end, -infinity without a span, and the first and the last token.

    `scores` are (n_tokens, 2), `in_paragraph` and `may_start` (n_tokens,). Of equal spans it is the earliest, of these
    the shortest.
    """
    max_tokens = min(max_tokens, len(scores))
    starts = np.where(in_paragraph & may_start, scores[:, 0], -np.inf)
    ends = np.append(np.where(in_paragraph, scores[:, 1], -np.inf), np.full(max_tokens - 1, -np.inf))
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
        raise UserError(f"a question has {max(n_tokens)} tokens; use a larger --max-length than {max_length}")
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
