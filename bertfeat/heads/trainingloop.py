"""The training loop of all neural heads: AdamW on minibatches, early stopping on dev, the best epoch restored."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bertfeat.errors import RunError, UserError
from bertfeat.heads.base import Labels, codes_of
from bertfeat.heads.batching import BatchSize, batches
from bertfeat.heads.scores import score_by
from bertfeat.heads.sequences import Sequences
from bertfeat.records import BoolArray, Float64Array, IntArray

if TYPE_CHECKING:
    from bertfeat.heads.neural import NeuralProbe

#: Called after each epoch with its numbers: epoch, max_epochs, train_loss, dev_loss, dev_score, metric, best_epoch, ...
OnEpoch: TypeAlias = Callable[[dict[str, Any]], None]

# Longer gradients are clipped: rare ones of recurrent networks would undo what was learned.
_MAX_GRADIENT_NORM = 5.0
# The few weights of a scalar mix must change much: from equal shares to one layer alone.
_MIX_LR_FACTOR = 10.0


@dataclass(frozen=True, eq=False)
class Examples:
    """Sequences with the class of each row as an index, (n_rows,), and the weight of each class in the loss.

    `taking_part` says which sequences are learned from, (n_sequences,); None is all.
    """

    data: Sequences
    codes: IntArray
    class_weights: Float64Array
    taking_part: BoolArray | None = None


class Measure(NamedTuple):
    """Results of a network on dev: `score` by the metric, and the mean loss, None if no label is a known class."""

    metric: str
    score: float
    loss: float | None

    @property
    def key(self) -> tuple[float, float]:
        """Two numbers that are larger where the score is better, or the same with a lower loss.

        A network may have an F1 of 0 for some epochs, until it finds its first entity, while its loss falls.
        """
        loss = math.inf if self.loss is None else self.loss
        return (-loss if self.metric == "loss" else self.score, -loss)


class DevSplit:
    """Labelled sequences that training is judged on; labels that training has not seen count as errors."""

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
        if self.metric == "loss":
            assert loss is not None
            return Measure(self.metric, loss, loss)
        predicted = self._classes[scores.argmax(dim=1).numpy()]
        return Measure(self.metric, score_by(self.metric, self._labels, predicted, self._data.lengths), loss)


def train(
    network: nn.Module,
    examples: Examples,
    dev: DevSplit | None,
    settings: NeuralProbe,
    device: torch.device,
    *,
    weight_decay: float,
    on_epoch: OnEpoch | None = None,
) -> tuple[dict[str, Any], Measure | None]:
    """Train a network, by the parameters of a head; return a report, and the measure of the best epoch on dev.

    The network takes vectors (n_rows, dim) and lengths (n_sequences,), and returns scores of the classes. The loss is
    the mean cross-entropy of the rows of a batch, each weighted by its class. Weight matrices decay; biases and the mix
    do not. Random numbers come from torch's global generator; see `own_randomness`.

    Raises:
        RunError: The loss, of training or on dev, is not finite; the message names the epoch.
    """
    lr, stops = float(settings.lr), settings.early_stopping
    network.to(device)
    optimizer = torch.optim.AdamW(_parameter_groups(network, lr, weight_decay), lr=lr, fused=True)
    rng = np.random.default_rng(settings.seed)
    best: Measure | None = None
    best_epoch, best_loss, best_weights = 0, 0.0, network.state_dict()
    epoch = 0
    while epoch < settings.max_epochs and not (stops and epoch - best_epoch >= settings.patience):
        epoch += 1
        loss = _run_epoch(network, examples, optimizer, settings.batch_limits, rng, device)
        _require_finite(loss, "training loss", epoch, lr)
        measure = None if dev is None else dev.measure(network, device)
        if measure is not None and measure.loss is not None:
            _require_finite(measure.loss, "loss on dev", epoch, lr)
        if not stops or measure is None or best is None or measure.key > best.key:
            best, best_epoch, best_loss = measure, epoch, loss
            if stops:
                best_weights = copy.deepcopy(network.state_dict())
        if on_epoch is not None:
            numbers = {"epoch": epoch, "max_epochs": settings.max_epochs, "train_loss": loss, "best_epoch": best_epoch}
            on_epoch(numbers | {"weight_decay": weight_decay} | _on_dev(measure))
    if stops:
        network.load_state_dict(best_weights)
    report = {"weight_decay": weight_decay, "n_epochs": epoch, "best_epoch": best_epoch, "train_loss": best_loss}
    return report | _on_dev(best), best


def _on_dev(measure: Measure | None) -> dict[str, Any]:
    if measure is None:
        return {}
    return {"metric": measure.metric, "dev_score": measure.score, "dev_loss": measure.loss}


def predict_scores(network: nn.Module, data: Sequences, n_classes: int, device: torch.device) -> torch.Tensor:
    """Return the scores of the classes before the softmax, float32 (n_rows, n_classes), on the CPU."""
    scores = torch.zeros((data.vectors.shape[0], n_classes))
    network.eval()
    with torch.inference_mode():
        for batch in batches(data, BatchSize.for_evaluation(data.dim)):
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
    size: BatchSize,
    rng: np.random.Generator,
    device: torch.device,
) -> float:
    """Take a step for each batch; return the mean loss of a row."""
    network.train()
    weights = torch.from_numpy(examples.class_weights).float().to(device)
    losses, n_rows = [], 0
    for batch in batches(examples.data, size, rng, examples.taking_part):
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
