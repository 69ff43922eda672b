"""Pre-training of a model with heads for masked words and next sentences, and its scores on held-out windows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bertfeat.devices import resolve_device
from bertfeat.errors import CheckpointError
from bertfeat.pipelines._maskedexamples import Examples
from bertfeat.pipelines._models import NO_LABEL, TaskModel, open_task_model
from bertfeat.pipelines._training import History, Settings, train
from bertfeat.progress import reporting


def open_masked_model(name: str, *, nsp: bool, seed: int) -> TaskModel:
    """Load a model with a head for masked words, and with one for next sentences if asked.

    Raises:
        CheckpointError: There is no such model, it has no mask token, or its family has no such head.
    """
    opened = open_task_model(name, "pretraining" if nsp else "masked", seed=seed)
    kind = opened.checkpoint.family.model_type
    if opened.model.config.is_encoder_decoder:
        raise CheckpointError(f"{name}: {kind} is an encoder-decoder; use a model with an encoder alone")
    if opened.tokenizer.mask_token_id is None:
        raise CheckpointError(f"{name}: its tokenizer has no mask token; use another model")
    if nsp and "next_sentence_label" not in inspect.signature(opened.model.forward).parameters:
        raise CheckpointError(f"{name}: {kind} has no head for next sentences; leave out --nsp")
    return opened


def is_tied(model: Any) -> bool:
    """Return whether a model guesses words by the embeddings that it reads them with."""
    outputs = model.get_output_embeddings()
    return outputs is not None and bool(outputs.weight is model.get_input_embeddings().weight)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores on held-out windows, with the same masks each time.

    Attributes:
        loss: The mean loss of a masked word, and with next sentences that of a pair added to it.
        masked_accuracy: The share of masked words that are guessed.
        next_accuracy: The share of pairs that are judged rightly; None without next sentences.
    """

    loss: float
    masked_accuracy: float
    next_accuracy: float | None


class HeldOut:
    """Held-out windows, masked once."""

    def __init__(self, examples: Examples, batch_size: int) -> None:
        order = np.argsort(examples.lengths, kind="stable").tolist()
        groups = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
        self._batches = [
            examples.make_batch(rows, np.random.default_rng([0, number])) for number, rows in enumerate(groups)
        ]

    @torch.no_grad()
    def scores(self, model: torch.nn.Module) -> Scores:
        """Score a model."""
        model.eval()
        device = next(model.parameters()).device
        sums = np.zeros(6)
        for batch in self._batches:
            inputs = {name: values.to(device) for name, values in batch.items()}
            out = model(**inputs)
            is_masked = inputs["labels"] != NO_LABEL
            logits = out.prediction_logits if "next_sentence_label" in inputs else out.logits
            sums[:3] += _sums(logits[is_masked], inputs["labels"][is_masked])
            if "next_sentence_label" in inputs:
                sums[3:] += _sums(out.seq_relationship_logits, inputs["next_sentence_label"])
        loss, n_right, n_masked, pair_loss, n_pairs_right, n_pairs = sums.tolist()
        masked = Scores(loss / n_masked, n_right / n_masked, None)
        if not n_pairs:
            return masked
        return Scores(masked.loss + pair_loss / n_pairs, masked.masked_accuracy, n_pairs_right / n_pairs)

    def guessed(self, token_id: int) -> float:
        """Return the masked accuracy of always guessing one token."""
        labels = torch.cat([batch["labels"].flatten() for batch in self._batches])
        return float((labels[labels != NO_LABEL] == token_id).float().mean())


def _sums(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, float]:
    """Return the sum of losses, the number of right guesses, and the number of labels."""
    loss = cross_entropy(logits.float(), labels, reduction="sum")
    return loss.item(), (logits.argmax(-1) == labels).sum().item(), float(len(labels))


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a pre-training: the held-out scores at its start and its end, and the epochs between."""

    before: Scores
    after: Scores
    history: History

    def curve(self) -> list[dict[str, float]]:
        """Return the held-out loss at step 0 and after each epoch, with the epoch's mean loss."""
        n_steps = self.history.step // self.history.epoch
        epochs = zip(self.history.losses, self.history.scores, strict=True)
        points = [
            {"step": n_steps * number, "held_out_loss": -score, "loss": loss}
            for number, (loss, score) in enumerate(epochs, start=1)
        ]
        return [{"step": 0, "held_out_loss": self.before.loss}, *points]


def pretrain(
    opened: TaskModel,
    examples: Examples,
    held_out: HeldOut,
    settings: Settings,
    folder: Path,
    identity: Mapping[str, Any],
) -> Course:
    """Train a model in place, and keep the weights of the epoch with the lowest held-out loss.

    A run that was killed is resumed from its checkpoint in the folder, which `discard` removes.

    Args:
        opened: The model.
        examples: What to train on.
        held_out: What to score on, after each epoch.
        settings: The settings of training.
        folder: Where the checkpoint is.
        identity: What decides the weights, beside the model, the examples and the settings.

    Raises:
        StoreError: The folder has a training with other settings.
        RunError: The loss is not finite.
    """
    model, checkpoint = opened.model, opened.checkpoint
    model.to(resolve_device(settings.device)[0])
    before = held_out.scores(model)
    made_of = {"model": checkpoint.weights_sha256, "tokenizer": checkpoint.tokenizer_sha256, "data": examples.digest()}
    with reporting(None) as progress:
        history = train(
            model,
            examples.lengths,
            examples.make_batch,
            settings,
            folder,
            identity={**made_of, **identity},
            evaluate=lambda: -held_out.scores(model).loss,
            progress=progress,
        )
    return Course(before, held_out.scores(model), history)
