"""Spans of tokens as answers: pairs of question and paragraph as tokens, whole or in windows, and their best spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertfeat.pipelines._squad import Prediction, Question
from bertfeat.records import BoolArray, Document, Float32Array, IntArray
from bertfeat.store.reader import Store
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import Windows, cut_windows


@dataclass(frozen=True, eq=False)
class Sequences:
    """Questions with their paragraphs as tokens, whole or in windows, laid end to end.

    Arrays over sequences: `question`, the number of the question. `starts` (n_sequences + 1,). Arrays over tokens:
    `source`, the token's number in all texts, the same in each window; `char_start` and `char_end`, in the paragraph;
    `in_paragraph`, whether the token has characters of the paragraph; `may_start`, whether an answer may start there:
    of several windows with a token, only in the one with most context.
    """

    questions: Sequence[Question]
    question: IntArray
    starts: IntArray
    source: IntArray
    char_start: IntArray
    char_end: IntArray
    in_paragraph: BoolArray
    may_start: BoolArray

    @property
    def lengths(self) -> IntArray:
        """The tokens of each sequence: int64 (n_sequences,)."""
        return np.diff(self.starts)

    @cached_property
    def places(self) -> IntArray:
        """The first and the last token of the first answer, counted from the sequence's start; int64 (n_sequences, 2).

        -1 where the sequence does not have all tokens of the answer.
        """
        hits, wanted = [], [set[int]() for _ in self.questions]
        for number, start, stop in zip(
            self.question.tolist(), self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True
        ):
            first, last = next(iter(self.questions[number].answers), (0, 0))
            overlaps = (self.char_start[start:stop] < last) & (self.char_end[start:stop] > first)
            hits.append(np.flatnonzero(overlaps & self.in_paragraph[start:stop]))
            wanted[number].update(self.source[start:stop][hits[-1]].tolist())
        whole = [len(hit) == len(wanted[number]) > 0 for number, hit in zip(self.question, hits, strict=True)]
        pairs = [(hit[0], hit[-1]) if is_whole else (-1, -1) for hit, is_whole in zip(hits, whole, strict=True)]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    def of(self, questions: Sequence[Question]) -> IntArray:
        """Return the numbers of the sequences of some questions."""
        names = {question.id for question in questions}
        is_named = np.array([question.id in names for question in self.questions], dtype=np.bool_)
        return np.flatnonzero(is_named[self.question])

    def answers(
        self, rows: IntArray, scores: Sequence[Float32Array], max_tokens: int, *, no_answers: bool
    ) -> list[Prediction]:
        """Return the best answer of each question that some sequences are of.

        Args:
            rows: The sequences.
            scores: The scores of each token as start and as end, (n_tokens, 2), of each sequence.
            max_tokens: The most tokens of an answer.
            no_answers: Whether to compare the best span with no answer.
        """
        best: dict[int, tuple[float, int, int]] = {}
        empty: dict[int, float] = {}
        for row, both in zip(rows.tolist(), scores, strict=True):
            number, start = int(self.question[row]), int(self.starts[row])
            tokens = slice(start, int(self.starts[row + 1]))
            score, first, last = best_span(both, self.in_paragraph[tokens], self.may_start[tokens], max_tokens)
            found = (score, int(self.char_start[start + first]), int(self.char_end[start + last]))
            best[number] = max(best.get(number, (-np.inf, 0, 0)), found, key=lambda one: one[0])
            empty[number] = min(empty.get(number, np.inf), float(both[0].sum()))
        predictions = []
        for number, (score, start, end) in best.items():
            is_empty = np.isneginf(score) or (no_answers and empty[number] > score)
            start, end = (0, 0) if is_empty else (start, end)
            question = self.questions[number]
            against = empty[number] if no_answers else None
            predictions.append(Prediction(question.id, question.context[start:end], start, end, score, against))
        return predictions


def best_span(
    scores: Float32Array, in_paragraph: BoolArray, may_start: BoolArray, max_tokens: int
) -> tuple[float, int, int]:
    """Return the span with the highest sum of start and end: the sum, the first and the last token.

    Args:
        scores: Of each token as start and as end, (n_tokens, 2).
        in_paragraph: Where a span may start and end.
        may_start: Where it may start, too.
        max_tokens: The most tokens of a span.

    Returns:
        The earliest of several such spans, of these the shortest. A sum of -infinity if no span is possible.
    """
    max_tokens = min(max_tokens, len(scores))
    starts = np.where(in_paragraph & may_start, scores[:, 0], -np.inf)
    ends = np.append(np.where(in_paragraph, scores[:, 1], -np.inf), np.full(max_tokens - 1, -np.inf))
    sums = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, max_tokens)
    first, more = np.unravel_index(int(np.argmax(sums)), sums.shape)
    return float(sums[first, more]), int(first), int(first + more)


def stored_sequences(store: Store, questions: Sequence[Question]) -> Sequences:
    """Return the tokens of a store of pairs, one sequence per question: each token is stored once."""
    frame = store.polars("token", ["doc_id", "token_index", "segment", "char_start", "char_end"])
    starts = np.flatnonzero(frame["token_index"].to_numpy() == 0)
    by_id = {question.id: question for question in questions}
    char_start, char_end = (frame[name].fill_null(0).to_numpy().astype(np.int64) for name in ("char_start", "char_end"))
    return Sequences(
        questions=[by_id[name] for name in frame["doc_id"].gather(starts)],
        question=np.arange(len(starts), dtype=np.int64),
        starts=np.append(starts, len(frame)).astype(np.int64),
        source=np.arange(len(frame), dtype=np.int64),
        char_start=char_start,
        char_end=char_end,
        in_paragraph=(frame["segment"].fill_null(0).to_numpy() == 1) & (char_end > char_start),
        may_start=np.ones(len(frame), dtype=np.bool_),
    )


def window_sequences(
    tokenizer: Tokenizer, limits: WindowLimits, questions: Sequence[Question]
) -> tuple[Sequences, Windows]:
    """Return the windows of questions with their paragraphs: the same as those of an extraction."""
    documents = [
        Document(index=n, doc_id=question.id, text=question.text, text_pair=question.context)
        for n, question in enumerate(questions)
    ]
    tokens = tokenizer.encode(documents)
    windows = cut_windows(tokens, tokenizer, limits, documents)
    # Special tokens have the number -1, which is the appended entry.
    char_start, char_end = (np.append(values, 0)[windows.source] for values in (tokens.char_start, tokens.char_end))
    paragraph_starts = np.repeat(tokens.pair_starts[windows.spans.document], windows.lengths)
    sequences = Sequences(
        questions=questions,
        question=windows.spans.document,
        starts=windows.starts,
        source=windows.source,
        char_start=char_start,
        char_end=char_end,
        in_paragraph=(windows.source >= paragraph_starts) & (char_end > char_start),
        may_start=windows.kept,
    )
    return sequences, windows
