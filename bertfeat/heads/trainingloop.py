"""The training loop of all neural heads: AdamW on minibatches, early stopping on dev, the best epoch restored."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bertfeat.devices import resolve_device
from bertfeat.errors import ConfigError, RunError, UserError, is_out_of_memory
from bertfeat.heads.batching import BatchSize, shuffled_batches
from bertfeat.heads.judging import DevSplit, Measure
from bertfeat.heads.matrices import Sequences
from bertfeat.records import BoolArray, Float64Array, IntArray

#: Called after each epoch with its numbers: epoch, max_epochs, train_loss, dev_loss, dev_score, metric, best_epoch, ...
OnEpoch: TypeAlias = Callable[[dict[str, Any]], None]

# Longer gradients are clipped: rare ones of recurrent networks would undo what was learned.
_MAX_GRADIENT_NORM = 5.0
_CUDA = re.compile(r"cuda(:\d{1,4})?", re.ASCII)
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

    The loss is the mean cross-entropy of the rows of a batch, each weighted by its class. Random numbers come from
    torch's global generator; see `own_randomness`.

    Args:
        network: The network, which is trained in place.
        examples: The examples to learn from.
        dev: The dev split, if there is one.
        settings: The settings of training.
        weight_decay: AdamW's, of weight matrices; biases and the mix have none.
        on_epoch: Called after each epoch.

    Raises:
        RunError: The loss, of training or on dev, is not finite; the message names the epoch.
        UserError: A vector holds NaN or infinity.
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


def pick_device(spec: object) -> torch.device:
    """Return the device that `auto` (CUDA if available), `cpu`, `cuda` or `cuda:1` names.

    Raises:
        UserError: The name is malformed, or this machine does not have the device.
    """
    if spec == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if not isinstance(spec, str) or not spec.startswith(("cpu", "cuda")) or "," in spec:
        raise UserError(f"device {spec!r} must be one of auto, cpu, cuda, cuda:0, cuda:1, ...")
    return resolve_device(spec)[0]


def device_to_load_on(spec: object) -> torch.device:
    """Return the device that a saved probe was trained on, or the CPU if this machine does not have it.

    Raises:
        UserError: The name is malformed.
    """
    try:
        return pick_device(spec)
    except ConfigError:
        if not isinstance(spec, str) or _CUDA.fullmatch(spec) is None:
            raise
        return torch.device("cpu")


@contextmanager
def memory_errors_explained(device: torch.device) -> Iterator[None]:
    """Turn torch's errors for too little memory into one line.

    Raises:
        RunError: There is not enough memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(
            f"the memory of device {device.type} is too small to train; use a smaller hidden_size or batch_size"
        ) from error


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and a device, and restore them afterwards."""
    is_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if is_cuda else []):
        torch.default_generator.manual_seed(seed)
        if is_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
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
    total = torch.zeros((), dtype=torch.float64, device=device)
    n_rows = 0
    for batch in shuffled_batches(examples.data, settings.size, rng, examples.taking_part):
        codes = torch.from_numpy(examples.codes[batch.rows]).to(device)
        scores = network(batch.vectors.to(device), batch.lengths)
        # torch's weighted mean would divide by the weights in the batch, which makes rare classes count less.
        loss = cross_entropy(scores, codes, weight=weights, reduction="sum") / len(codes)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _MAX_GRADIENT_NORM)
        optimizer.step()
        total += loss.detach() * len(codes)
        n_rows += len(codes)
    return total.item() / n_rows


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
