"""The training loop of all neural heads: AdamW on minibatches, early stopping on dev, the best epoch restored."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bertfeat.errors import RunError, UserError
from bertfeat.heads.base import Labels, codes_of
from bertfeat.heads.batching import BatchSize, ordered_batches, shuffled_batches
from bertfeat.heads.entities import entity_scores
from bertfeat.heads.scores import macro_f1
from bertfeat.heads.sequences import Sequences
from bertfeat.records import BoolArray, Float64Array, IntArray

#: Called after each epoch with its numbers: epoch, max_epochs, train_loss, dev_loss, dev_score, metric, best_epoch, ...
OnEpoch: TypeAlias = Callable[[dict[str, Any]], None]

# Longer gradients are clipped: rare ones of recurrent networks would undo what was learned.
_MAX_GRADIENT_NORM = 5.0
# The few weights of a scalar mix must change much: from equal shares to one layer alone.
_MIX_LR_FACTOR = 10.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of training.

    `patience` is the number of epochs without a better score on dev; None runs `max_epochs` and keeps the last weights.
    """

    lr: float
    max_epochs: int
    patience: int | None
    size: BatchSize
    seed: int
    device: torch.device


@dataclass(frozen=True, eq=False)
class Examples:
    """Sequences with the class of each row as an index, (n_rows,), and the weight of each class in the loss.

    `taking_part` says which sequences are learned from, (n_sequences,); None is all.
    """

    data: Sequences
    codes: IntArray
    class_weights: Float64Array
    taking_part: BoolArray | None = None


@dataclass(frozen=True)
class Measure:
    """Results of a network on dev: `score` by the metric, and the mean loss, None if no label is a known class."""

    metric: str
    score: float
    loss: float | None

    def is_better_than(self, other: Measure | None) -> bool:
        """Return whether the score is better than another's, or the same with a lower loss."""
        # A network may have an F1 of 0 for some epochs, until it finds its first entity, while its loss falls.
        return other is None or self._key() > other._key()

    def report(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {"metric": self.metric, "dev_score": self.score, "dev_loss": self.loss}

    def _key(self) -> tuple[float, float]:
        loss = math.inf if self.loss is None else self.loss
        return (-loss if self.metric == "loss" else self.score, -loss)


class DevSplit:
    """Labelled sequences that training is judged on; labels that training has not seen count as errors.

    Args:
        data: The sequences.
        labels: The label of each row, (n_rows,).
        classes: The probe's classes, sorted.
        class_weights: Their weights in the loss.
        metric: accuracy, macro_f1, entity_f1 or loss.
    """

    def __init__(
        self, data: Sequences, labels: Labels, classes: Labels, class_weights: Float64Array, metric: str
    ) -> None:
        self.metric, self._data, self._labels, self._classes = metric, data, labels, classes
        self._class_weights = torch.from_numpy(class_weights).float()
        self._codes = torch.from_numpy(codes_of(labels, classes))
        if metric == "loss" and not (self._codes >= 0).any():
            raise UserError("dev holds no label that train has seen, so it has no loss; pass another metric")

    def measure(self, network: nn.Module, device: torch.device) -> Measure:
        """Measure a network."""
        try:
            scores = predict_scores(network, self._data, len(self._classes), device)
        except UserError as error:
            raise UserError(f"dev: {error}") from None
        known = self._codes >= 0
        loss = None
        if known.any():
            losses = cross_entropy(scores[known], self._codes[known], weight=self._class_weights, reduction="none")
            loss = losses.mean(dtype=torch.float64).item()
        predicted = self._classes[scores.argmax(dim=1).numpy()]
        return Measure(self.metric, self._score(predicted, loss), loss)

    def _score(self, predicted: Labels, loss: float | None) -> float:
        if self.metric == "loss":
            return math.inf if loss is None else loss
        if self.metric == "entity_f1":
            return entity_scores(self._labels, predicted, self._data.lengths).f1
        if self.metric == "macro_f1":
            return macro_f1(self._labels, predicted)
        return float(np.mean(self._labels == predicted))


@dataclass(frozen=True, kw_only=True)
class Training:
    """The result of training: the best epoch, its loss, and its measure on dev if there is one."""

    weight_decay: float
    n_epochs: int
    best_epoch: int
    train_loss: float
    best: Measure | None

    def report(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        report = {name: value for name, value in vars(self).items() if name != "best"}
        return report if self.best is None else report | self.best.report()


def train(
    network: nn.Module,
    examples: Examples,
    dev: DevSplit | None,
    settings: Settings,
    *,
    weight_decay: float,
    on_epoch: OnEpoch | None = None,
) -> Training:
    """Train a network; it takes vectors (n_rows, dim) and lengths (n_sequences,), and returns scores of the classes.

    The loss is the mean cross-entropy of the rows of a batch, each weighted by its class. Weight matrices decay; biases
    and the mix do not. Random numbers come from torch's global generator; see `own_randomness`.

    Raises:
        RunError: The loss, of training or on dev, is not finite; the message names the epoch.
    """
    network.to(settings.device)
    optimizer = torch.optim.AdamW(_parameter_groups(network, settings.lr, weight_decay), lr=settings.lr, fused=True)
    rng = np.random.default_rng(settings.seed)
    best: Measure | None = None
    best_epoch, best_loss, best_weights = 0, 0.0, network.state_dict()
    epoch = 0
    while epoch < settings.max_epochs and epoch - best_epoch < (settings.patience or settings.max_epochs):
        epoch += 1
        loss = _run_epoch(network, examples, optimizer, settings, rng)
        _require_finite(loss, "training loss", epoch, settings.lr)
        measure = None if dev is None else dev.measure(network, settings.device)
        if measure is not None and measure.loss is not None:
            _require_finite(measure.loss, "loss on dev", epoch, settings.lr)
        if settings.patience is None or measure is None or measure.is_better_than(best):
            best, best_epoch, best_loss = measure, epoch, loss
            if settings.patience is not None:
                best_weights = copy.deepcopy(network.state_dict())
        if on_epoch is not None:
            numbers = {"epoch": epoch, "max_epochs": settings.max_epochs, "train_loss": loss, "best_epoch": best_epoch}
            on_epoch(numbers | {"weight_decay": weight_decay} | ({} if measure is None else measure.report()))
    if settings.patience is not None:
        network.load_state_dict(best_weights)
    return Training(weight_decay=weight_decay, n_epochs=epoch, best_epoch=best_epoch, train_loss=best_loss, best=best)


def predict_scores(network: nn.Module, data: Sequences, n_classes: int, device: torch.device) -> torch.Tensor:
    """Return the scores of the classes before the softmax, float32 (n_rows, n_classes), on the CPU."""
    scores = torch.zeros((data.vectors.shape[0], n_classes))
    network.eval()
    with torch.inference_mode():
        for batch in ordered_batches(data, BatchSize.for_evaluation(data.dim)):
            scores[torch.from_numpy(batch.rows)] = network(batch.vectors.to(device), batch.lengths).cpu()
    return scores


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and a device; restore those of the CPU and of CUDA afterwards."""
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield


def _run_epoch(
    network: nn.Module,
    examples: Examples,
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    rng: np.random.Generator,
) -> float:
    """Take a step for each batch; return the mean loss of a row."""
    network.train()
    device = settings.device
    weights = torch.from_numpy(examples.class_weights).float().to(device)
    losses, n_rows = [], 0
    for batch in shuffled_batches(examples.data, settings.size, rng, examples.taking_part):
        codes = torch.from_numpy(examples.codes[batch.rows]).to(device)
        scores = network(batch.vectors.to(device), batch.lengths)
        # torch's weighted mean would divide by the weights in the batch, which makes rare classes count less.
        loss = cross_entropy(scores, codes, weight=weights, reduction="sum") / len(codes)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _MAX_GRADIENT_NORM)
        optimizer.step()
        losses.append(loss.detach() * len(codes))
        n_rows += len(codes)
    # They are added up here in float64, which not every device has.
    return float(sum(torch.stack(losses).tolist())) / n_rows


def _require_finite(loss: float, what: str, epoch: int, lr: float) -> None:
    if not math.isfinite(loss):
        raise RunError(f"epoch {epoch}: the {what} is {loss}; train with a lower lr than {lr:g}")


def _parameter_groups(network: nn.Module, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    named = list(network.named_parameters())
    mix = [parameter for name, parameter in named if name.startswith("mix.")]
    rest = [parameter for name, parameter in named if not name.startswith("mix.")]
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0},
        {"params": mix, "weight_decay": 0.0, "lr": lr * _MIX_LR_FACTOR},
    ]
    return [group for group in groups if group["params"]]
