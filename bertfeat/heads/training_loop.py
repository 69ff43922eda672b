"""Networks of neural heads, and their training: AdamW on minibatches, early stopping on dev, the best epoch kept."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from bertfeat.choices import Task
from bertfeat.errors import RunError, UserError
from bertfeat.heads.base import Labels
from bertfeat.heads.batching import BatchSize, batches
from bertfeat.heads.scores import score_by
from bertfeat.heads.sequences import Sequences
from bertfeat.heads.targets import Targets, decide
from bertfeat.records import BoolArray, Float64Array, IntArray
from bertfeat.vectors.standardized import Scaling

if TYPE_CHECKING:
    from bertfeat.heads.neural import NeuralProbe

#: Called after each epoch with its numbers: epoch, max_epochs, train_loss, dev_loss, dev_score, metric, best_epoch, ...
OnEpoch: TypeAlias = Callable[[dict[str, Any]], None]

# Longer gradients are clipped: rare ones of recurrent networks would undo what was learned.
_MAX_GRADIENT_NORM = 5.0
# The few weights of a scalar mix must change much: from equal shares to one layer alone.
_MIX_LR_FACTOR = 10.0


class ScalarMix(nn.Module):
    """gamma * sum over layers of softmax(w)_l * h_l (Peters et al. 2018, equation 1), at first their mean."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.n_layers = n_layers
        self.weights = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, layers: torch.Tensor) -> torch.Tensor:
        """Mix layers, float (n_rows, n_layers, hidden), into (n_rows, hidden)."""
        shares = self.gamma * torch.softmax(self.weights, dim=0)
        return torch.einsum("nld,l->nd", layers, shares)

    def report(self) -> dict[str, Any]:
        """Return the weights of the layers, which sum to 1, the lowest layer first, and gamma."""
        shares = torch.softmax(self.weights.detach().double(), dim=0)
        return {"weights": shares.tolist(), "gamma": self.gamma.item()}


class Network(nn.Module):
    """A network that standardizes vectors, mixes their layers unless `n_layers` is None, and scores rows by a body."""

    mean: torch.Tensor
    scale: torch.Tensor
    body: Body

    def __init__(self, scaling: Scaling, n_layers: int | None, body: Body) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(scaling.mean))
        self.register_buffer("scale", torch.tensor(scaling.scale))
        self.mix = None if n_layers is None else ScalarMix(n_layers)
        self.body = body

    def start_at(self, scores: Float64Array) -> None:
        """Start at scores, (n_outputs,), that every row gets; to learn them takes the intercept thousands of steps."""
        with torch.no_grad():
            self.body.output.bias.copy_(torch.from_numpy(scores))

    def unscale(self, scaling: Scaling) -> None:
        """Turn scores of numbers that were standardized into scores of the numbers."""
        mean, scale = torch.from_numpy(scaling.mean), torch.from_numpy(scaling.scale)
        with torch.no_grad():
            output = self.body.output
            output.weight.mul_(scale.to(output.weight)[:, None])
            output.bias.mul_(scale.to(output.bias)).add_(mean.to(output.bias))

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Return scores (n_rows, n_classes) of vectors (n_rows, dim), of sequences end to end, none of length 0."""
        vectors = (vectors - self.mean) / self.scale
        if self.mix is not None:
            vectors = self.mix(vectors.reshape(-1, self.mix.n_layers, len(self.mean) // self.mix.n_layers))
        scores: torch.Tensor = self.body(vectors, lengths)
        return scores


class RowByRow(nn.Module):
    """Modules applied to each row alone."""

    def __init__(self, hidden: nn.Module, output: nn.Linear) -> None:
        super().__init__()
        self.hidden = hidden
        self.output = output

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:  # noqa: ARG002
        """Return scores; see `Network.forward`."""
        scores: torch.Tensor = self.output(self.hidden(vectors))
        return scores


class BiLSTM(nn.Module):
    """A BiLSTM with dropout and a linear layer."""

    # Sequences are packed: padded batches take oneDNN 1.6 times as long (768 wide, 32 sentences, one thread).

    def __init__(self, dim: int, hidden_size: int, n_layers: int, dropout: float, n_classes: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(dim, hidden_size, n_layers, bidirectional=True, dropout=dropout if n_layers > 1 else 0.0)
        self.output = nn.Linear(2 * hidden_size, n_classes)

    def forward(self, vectors: torch.Tensor, lengths: IntArray) -> torch.Tensor:
        """Return scores; see `Network.forward`."""
        order, sequences = np.argsort(-lengths, kind="stable"), torch.split(vectors, lengths.tolist())
        packed = pack_sequence([sequences[number] for number in order])
        states = unpack_sequence(self.lstm(packed._replace(data=self.dropout(packed.data)))[0])
        back = torch.cat([states[place] for place in np.argsort(order)])
        scores: torch.Tensor = self.output(self.dropout(back))
        return scores


#: The part of a network that scores rows; `output`, a linear layer, is its last step.
Body: TypeAlias = RowByRow | BiLSTM


@dataclass(frozen=True, eq=False)
class Examples:
    """Sequences, with what each row is labelled with (see `Targets`), and the weights of classes in the loss."""

    task: str
    data: Sequences
    targets: Targets
    class_weights: Float64Array
    taking_part: BoolArray | None = None  # the sequences that are learned from, (n_sequences,); None is all


@dataclass(frozen=True, eq=False)
class DevSplit:
    """Examples that training is judged on, with their labels, (n_rows,); those that train has not seen are errors."""

    examples: Examples
    labels: Labels
    classes: Labels
    metric: str

    def measure(self, network: Network) -> dict[str, Any]:
        """Return the metric, its score and the mean loss, which is None if no label is a known class."""
        task, data, targets = self.examples.task, self.examples.data, torch.from_numpy(self.examples.targets)
        try:
            scores = predict_scores(network, data)
        except UserError as error:
            raise UserError(f"dev: {error}") from None
        known = targets >= 0 if task == Task.CLASSIFY else torch.ones(len(targets), dtype=torch.bool)
        loss = None
        if known.any():
            weights = torch.from_numpy(self.examples.class_weights).float()
            losses = loss_of(task, scores[known], targets[known], weights, reduction="none")
            loss = losses.mean(dtype=torch.float64).item()
        score = loss
        if self.metric != "loss":
            found = decide(task, scores.numpy(), self.classes)
            score = score_by(self.metric, self.labels, found, data.lengths, classes=self.classes)
        return {"metric": self.metric, "dev_score": score, "dev_loss": loss}


def loss_of(
    task: str, scores: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, reduction: str
) -> torch.Tensor:
    """Return the losses of rows, or their sum: cross-entropy, squared error, or the cross-entropy of each label."""
    if task == Task.CLASSIFY:
        return cross_entropy(scores, targets, weight=weights, reduction=reduction)
    if task == Task.REGRESS:
        return mse_loss(scores, targets.float(), reduction=reduction)
    each = torch.where(targets, weights[:, 1], weights[:, 0])
    return binary_cross_entropy_with_logits(scores, targets.float(), weight=each, reduction=reduction)


def rank(measure: Mapping[str, Any]) -> tuple[float, float]:
    """Return a key to compare measures by score, then by loss: F1 stays 0 until the first entity is found."""
    loss = -math.inf if measure["dev_loss"] is None else -measure["dev_loss"]
    return (loss if measure["metric"] == "loss" else measure["dev_score"], loss)


def train(
    network: Network,
    examples: Examples,
    dev: DevSplit | None,
    settings: NeuralProbe,
    *,
    weight_decay: float,
    on_epoch: OnEpoch | None = None,
) -> dict[str, Any]:
    """Train a network, by the parameters of a head; return a report, with the measure of the best epoch on dev."""
    lr, stops, epoch = float(settings.lr), settings.early_stopping, 0
    optimizer = torch.optim.AdamW(_parameter_groups(network, lr, weight_decay), lr=lr, fused=True)
    size = BatchSize(settings.batch_size, getattr(settings, "batch_tokens", settings.batch_size))
    rng = np.random.default_rng(settings.seed)
    best: dict[str, Any] = {"best_epoch": 0}
    best_weights: dict[str, Any] = {}
    while epoch < settings.max_epochs and not (stops and epoch - best["best_epoch"] >= settings.patience):
        epoch += 1
        loss = _run_epoch(network, examples, optimizer, size, rng)
        measure = {} if dev is None else dev.measure(network)
        for what, value in (("training loss", loss), ("loss on dev", measure.get("dev_loss"))):
            if value is not None and not math.isfinite(value):
                raise RunError(f"epoch {epoch}: the {what} is {value}; train with a lower lr than {lr:g}")
        if not stops or epoch == 1 or rank(measure) > rank(best):
            best = {"best_epoch": epoch, "train_loss": loss, **measure}
            if stops:
                best_weights = copy.deepcopy(network.state_dict())
        if on_epoch is not None:
            numbers = {"epoch": epoch, "max_epochs": settings.max_epochs, "train_loss": loss}
            on_epoch(numbers | {"best_epoch": best["best_epoch"], "weight_decay": weight_decay} | measure)
    if stops:
        network.load_state_dict(best_weights)
    return {"weight_decay": weight_decay, "n_epochs": epoch, **best}


def predict_scores(network: Network, data: Sequences) -> torch.Tensor:
    """Return the scores of the classes before the softmax, float32 (n_rows, n_classes), on the CPU."""
    scores = torch.zeros((data.vectors.shape[0], network.body.output.out_features))
    network.eval()
    with torch.inference_mode():
        for batch in batches(data, BatchSize.for_evaluation(data.dim)):
            scores[torch.from_numpy(batch.rows)] = network(batch.vectors.to(network.mean.device), batch.lengths).cpu()
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
    network: Network, examples: Examples, optimizer: torch.optim.Optimizer, size: BatchSize, rng: np.random.Generator
) -> float:
    """Take a step for each batch; return the mean loss of a row."""
    network.train()
    device = network.mean.device
    weights = torch.from_numpy(examples.class_weights).float().to(device)
    losses, n_rows = [], 0
    for batch in batches(examples.data, size, rng, examples.taking_part):
        targets = torch.from_numpy(examples.targets[batch.rows]).to(device)
        scores = network(batch.vectors.to(device), batch.lengths)
        # torch's weighted mean would divide by the weights in the batch, which makes rare classes count less.
        loss = loss_of(examples.task, scores, targets, weights, reduction="sum") / len(targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), _MAX_GRADIENT_NORM)
        optimizer.step()
        losses.append(loss.detach() * len(targets))
        n_rows += len(targets)
    # They are added up here in float64, which not every device has.
    return float(sum(torch.stack(losses).tolist())) / n_rows


def _parameter_groups(network: Network, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    mix = [] if network.mix is None else list(network.mix.parameters())
    rest = list(network.body.parameters())
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0},
        {"params": mix, "weight_decay": 0.0, "lr": lr * _MIX_LR_FACTOR},
    ]
    return [group for group in groups if group["params"]]
