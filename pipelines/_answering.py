"""Models that answer questions by spans: heads on frozen features, and a whole model that is fine-tuned.

Devlin et al. 2019 (arXiv 1810.04805v2), sections 4.2 and 4.3: each token has a score as start and one as end, the loss
is that of the right ones under a softmax over tokens, and the answer is the span with the highest sum of the two. In a
task with unanswerable questions, the first token, [CLS] in BERT, stands for no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from bertfeat.errors import UserError
from bertfeat.heads.networks import Body, Network, RowByRow
from bertfeat.pipelines._models import TaskModel
from bertfeat.pipelines._spans import Sequences, stored_sequences, window_sequences
from bertfeat.pipelines._squad import Prediction, Question, score_each
from bertfeat.pipelines._taskbatches import Padding
from bertfeat.pipelines._training import Settings, train
from bertfeat.progress import reporting
from bertfeat.ragged import ragged_arange
from bertfeat.records import Float32Array, IntArray
from bertfeat.store.reader import Store
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.vectors.standardized import fit_scaling
from bertfeat.vectors.store import StoreVectors

Inputs = Mapping[str, torch.Tensor]
_DROPOUT = 0.3
_PREDICTED = 32  # sequences at a time


class PaddedBiLSTM(Body):
    """Two layers of a BiLSTM with dropout and a linear layer, over padded sequences.

    The padding is after the last token in both directions, so that it changes no score. For narrow states this takes a
    third of the time of the taggers' BiLSTM, whose sequences are packed.
    """

    def __init__(self, dim: int, hidden_size: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(_DROPOUT)
        widths = (dim, dim, 2 * hidden_size, 2 * hidden_size)
        self.lstms = nn.ModuleList(nn.LSTM(width, hidden_size, batch_first=True) for width in widths)
        self.output = nn.Linear(2 * hidden_size, 2)

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Return scores (n_rows, 2) for vectors (n_rows, dim) of sequences that lie end to end."""
        place, n_tokens = np.arange(lengths.max()), lengths[:, None]
        back = torch.from_numpy(np.where(place < n_tokens, n_tokens - 1 - place, place)).to(vectors.device)[..., None]
        states = pad_sequence(list(torch.split(vectors, lengths.tolist())), batch_first=True)
        for forth, other in zip(self.lstms[::2], self.lstms[1::2], strict=True):
            states = self.dropout(states)
            after, _ = other(torch.take_along_dim(states, back, dim=1))
            states = torch.cat([forth(states)[0], torch.take_along_dim(after, back, dim=1)], dim=-1)
        scores: torch.Tensor = self.output(self.dropout(states))
        return torch.cat([one[:length] for one, length in zip(scores, lengths.tolist(), strict=True)])


class SpanHead(nn.Module):
    """Scores of tokens as start and as end, from frozen features: linear, or a BiLSTM over question and paragraph."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, vectors: torch.Tensor, lengths: torch.Tensor, candidates: torch.Tensor, **places: Any) -> Any:
        """Return the scores, (n_tokens, 2), and the loss, if places are given.

        Args:
            vectors: float32 (n_tokens, dim), of sequences that lie end to end.
            lengths: int64 (n_sequences,).
            candidates: bool (n_tokens,), the tokens that the softmax is over.
            places: `start_positions` and `end_positions`, int64 (n_sequences,).
        """
        scores = self.network(vectors, lengths.cpu().numpy())
        loss = None
        if places:
            masked = scores.masked_fill(~candidates[:, None], -torch.inf).split(lengths.tolist())
            padded = pad_sequence(list(masked), batch_first=True, padding_value=-torch.inf)
            pairs = zip(padded.unbind(-1), (places["start_positions"], places["end_positions"]), strict=True)
            loss = sum(nn.functional.cross_entropy(*pair) for pair in pairs) / 2
        return SimpleNamespace(loss=loss, scores=scores)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learned and how it is used.

    Attributes:
        train: The questions to learn from.
        chosen_on: The questions whose F1 decides which epoch is kept; without any, the last one is.
        dev: The questions to answer.
        max_answer_tokens: The most tokens of an answer.
        no_answers: Whether no answer is an answer.
        settings: The settings of training.
        folder: Where the checkpoint of training is.
        identity: What else decides the weights; see `train`.
    """

    train: Sequence[Question]
    chosen_on: Sequence[Question]
    dev: Sequence[Question]
    max_answer_tokens: int
    no_answers: bool
    settings: Settings
    folder: Path
    identity: Mapping[str, Any]

    def run(
        self,
        model: nn.Module,
        learned: Sequences,
        asked: Sequences,
        rows: IntArray,
        make_batch: Callable[[Sequences, IntArray], tuple[Inputs, torch.Tensor]],
        read_scores: Callable[[Any, Inputs], Sequence[torch.Tensor]],
    ) -> tuple[list[Prediction], dict[str, Any]]:
        """Train a model on some sequences; return its answers to the questions of dev, and a report of the training.

        Args:
            model: The model or head, which is trained in place.
            learned: The sequences of `train` and `chosen_on`.
            asked: The sequences of `dev`.
            rows: The sequences to learn from.
            make_batch: Makes the inputs of sequences, without the places of answers, and the place of each first token.
            read_scores: Returns the scores (n_tokens, 2) of each sequence from the model's output and its inputs.

        Raises:
            UserError: There is nothing to learn from.
        """
        if not len(rows):
            raise UserError("no answer of the training questions is among the model's tokens; use another model")
        # A sequence without the answer is an example of no answer.
        places = torch.from_numpy(np.maximum(learned.places, 0))

        def make_labelled(batch: Sequence[int], _: np.random.Generator) -> Inputs:
            chosen = rows[list(batch)]
            inputs, first = make_batch(learned, chosen)
            start, end = (first[:, None] + places[torch.from_numpy(chosen)]).unbind(-1)
            return {**inputs, "start_positions": start, "end_positions": end}

        def answer(sequences: Sequences, questions: Sequence[Question]) -> list[Prediction]:
            asked_rows = sequences.of(questions)
            order = asked_rows[np.argsort(-sequences.lengths[asked_rows], kind="stable")]
            device = next(model.parameters()).device
            model.eval()
            scores: dict[int, Float32Array] = {}
            for at in range(0, len(order), _PREDICTED):
                chosen = order[at : at + _PREDICTED]
                with torch.inference_mode():
                    inputs = {name: values.to(device) for name, values in make_batch(sequences, chosen)[0].items()}
                    each = read_scores(model(**inputs), inputs)
                scores |= {row: both.float().cpu().numpy() for row, both in zip(chosen.tolist(), each, strict=True)}
            in_order = [scores[row] for row in asked_rows.tolist()]
            found = sequences.answers(asked_rows, in_order, self.max_answer_tokens, no_answers=self.no_answers)
            by_id = {one.id: one for one in found}
            # Question and paragraph may have no token, of a model without special tokens.
            return [by_id.get(one.id, Prediction(one.id, "", 0, 0, -np.inf)) for one in questions]

        def evaluate() -> float:
            answers = {one.id: one.answer for one in answer(learned, self.chosen_on)}
            return float(score_each(self.chosen_on, answers)[:, 1].mean())

        with reporting(None) as progress:
            history = train(
                model,
                learned.lengths[rows].tolist(),
                make_labelled,
                self.settings,
                self.folder,
                identity=self.identity,
                evaluate=evaluate if self.chosen_on else None,
                progress=progress,
            )
        return answer(asked, self.dev), {**history.report(), "n_examples": len(rows)}


def fit_head(
    task: Task, kind: str, hidden_size: int, stores: Mapping[str, Store], feature: str
) -> tuple[list[Prediction], dict[str, Any]]:
    """Train a head on the features of pairs in the stores `train` and `dev`, and answer the questions of dev."""
    learned = stored_sequences(stores["train"], [*task.train, *task.chosen_on])
    asked = stored_sequences(stores["dev"], task.dev)
    store_of = {id(learned): stores["train"], id(asked): stores["dev"]}
    dim = stores["train"].feature("token", feature).dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(task.settings.seed)
        body: Body = PaddedBiLSTM(dim, hidden_size) if kind == "bilstm" else _linear(dim)
    all_rows = np.arange(stores["train"].n_rows("token"))
    vectors = StoreVectors(stores["train"], "token", feature, rows=all_rows)
    head = SpanHead(Network(fit_scaling(vectors), None, body))
    rows = np.intersect1d(learned.of(task.train), np.flatnonzero(learned.places[:, 0] >= 0))
    if task.no_answers:
        rows = np.union1d(rows, learned.of([question for question in task.train if not question.answers]))

    def make_batch(sequences: Sequences, chosen: IntArray) -> tuple[Inputs, torch.Tensor]:
        tokens = ragged_arange(sequences.starts[chosen], sequences.lengths[chosen])
        vectors = store_of[id(sequences)].take("token", feature, tokens).astype(np.float32)
        candidates = sequences.in_paragraph[tokens]
        if task.no_answers:
            candidates = candidates | np.isin(tokens, sequences.starts)
        arrays = {"vectors": vectors, "lengths": sequences.lengths[chosen], "candidates": candidates}
        return {name: torch.from_numpy(values) for name, values in arrays.items()}, torch.zeros(len(chosen)).long()

    def read_scores(output: Any, inputs: Inputs) -> Sequence[torch.Tensor]:
        scores: Sequence[torch.Tensor] = output.scores.split(inputs["lengths"].tolist())
        return scores

    return task.run(head, learned, asked, rows, make_batch, read_scores)


def _linear(dim: int) -> Body:
    output = nn.Linear(dim, 2)
    # As in the linear tagger: random weights would only be noise that training has to remove first.
    nn.init.zeros_(output.weight)
    return RowByRow(nn.Identity(), output)


def fine_tune(task: Task, opened: TaskModel, max_length: int, stride: int) -> tuple[list[Prediction], dict[str, Any]]:
    """Train a whole model with transformers' head for questions, and answer the questions of dev.

    Paragraphs that do not fit are read in overlapping windows; one without the answer is an example of no answer.
    """
    checkpoint = opened.checkpoint
    limits = WindowLimits(max_length, stride)
    tokenizer = Tokenizer.load(checkpoint.folder, n_ids=checkpoint.n_ids)
    learned, learned_windows = window_sequences(tokenizer, limits, [*task.train, *task.chosen_on])
    asked, asked_windows = window_sequences(tokenizer, limits, task.dev)
    windows_of = {id(learned): learned_windows, id(asked): asked_windows}
    padding = Padding.of(opened)

    def make_batch(sequences: Sequences, chosen: IntArray) -> tuple[Inputs, torch.Tensor]:
        inputs, is_token = padding.inputs(windows_of[id(sequences)], chosen)
        return inputs, torch.from_numpy(is_token.argmax(axis=1))

    def read_scores(output: Any, inputs: Inputs) -> Sequence[torch.Tensor]:
        both = torch.stack([output.start_logits, output.end_logits], dim=-1)
        return [one[mask.bool()] for one, mask in zip(both, inputs["attention_mask"], strict=True)]

    return task.run(opened.model, learned, asked, learned.of(task.train), make_batch, read_scores)
