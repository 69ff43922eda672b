"""Training of a whole model, for the recipes: a plain loop with early stopping that a killed run continues.

transformers' Trainer needs a package more, and its checkpoints are not replaced in one step, so that a kill can leave
half of one. Here each step draws its random numbers from its own number: a run that continues computes what an
uninterrupted one does.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import click
import numpy as np
import torch

from bertfeat.cli.options import refuse_given
from bertfeat.devices import resolve_device
from bertfeat.durable.differences import differing, named
from bertfeat.durable.publication import publish_file
from bertfeat.errors import ConfigError, RunError, StoreError
from bertfeat.pipelines._models import require_head
from bertfeat.progress import Progress

#: Makes the inputs of some examples, labels included; the generator is for what is drawn in each step.
MakeBatch = Callable[[Sequence[int], np.random.Generator], Mapping[str, torch.Tensor]]

_MAX_GRADIENT_NORM = 1.0
# Examples are sorted by length within this many batches.
_SORTED_BATCHES = 50
_CHECKPOINT = "training.pt"
#: task -> the kind of head
TASKS = {"classify": "sequence", "tag": "token", "regress": "sequence", "pair": "sequence"}
#: Seeds of torch and polars.
SEED = click.IntRange(min=0, max=2**32 - 1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of training.

    Attributes:
        learning_rate: The highest one; it rises in the first tenth of the steps and then falls to 0, both linearly.
        epochs: The most passes over the examples.
        batch_size: Examples of a step.
        patience: Epochs without a better score on dev before training ends; None trains all epochs.
        seed: Of the order, of dropout and of what is drawn in each step.
        device: Where to compute.
        save_every: Steps between two checkpoints; one more is written after each epoch.
    """

    learning_rate: float
    epochs: int
    batch_size: int
    patience: int | None = None
    seed: int = 0
    device: str = "auto"
    weight_decay: float = 0.01
    save_every: int = 500

    def __post_init__(self) -> None:
        if not math.isfinite(self.learning_rate):
            raise ConfigError(f"the learning rate {self.learning_rate} is not a finite number")


@dataclass
class History:
    """The course of a training.

    Attributes:
        step: Steps taken.
        epoch: Epochs finished.
        losses: The mean loss of each epoch.
        scores: The score on dev after each epoch; empty without dev.
        best_epoch: The epoch whose weights are kept, 1 for the first.
        seconds: The time of training, over all runs.
        is_finished: Whether training has ended.
    """

    step: int = 0
    epoch: int = 0
    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    best_epoch: int = 0
    seconds: float = 0.0
    is_finished: bool = False

    def report(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {name: value for name, value in asdict(self).items() if name != "is_finished"}


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `Settings` to a command."""
    for option in reversed(
        (
            click.option(
                "--learning-rate", type=click.FloatRange(min=0, min_open=True), default=5e-5, show_default=True
            ),
            click.option("--epochs", type=click.IntRange(min=1), default=4, show_default=True, help="The most epochs."),
            click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True),
            click.option("--patience", type=click.IntRange(min=1), help="Stop after N epochs without a better score."),
            click.option("--seed", type=SEED, default=0, show_default=True),
            click.option("--device", default="auto", show_default=True, help="auto, cpu, mps, or cuda:N."),
            click.option("--save-every", type=click.IntRange(min=1), default=500, show_default=True, help="In steps."),
        )
    ):
        function = option(function)
    return function


def refuse_without_finetuning(*names: str) -> None:
    """Refuse options of the command that are for fine-tuning, which is not asked for.

    Raises:
        UsageError: Such an option is given.
    """
    refuse_given(names, "is for fine-tuning; pass --with-finetuning too, or drop it")


def finetuning_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a fine-tuned row to the command of a recipe that compares features."""
    for option in reversed(
        (
            click.option("--with-finetuning", is_flag=True, help="Add a row: the model itself is trained."),
            click.option("--finetuning-epochs", type=click.IntRange(min=1), default=4, show_default=True),
            click.option(
                "--finetuning-rate",
                type=click.FloatRange(min=0, min_open=True),
                default=5e-5,
                show_default=True,
                help="Its learning rate.",
            ),
        )
    ):
        function = option(function)
    return function


def check_finetuning(model: str, task: str, *, asked: bool) -> None:
    """Check the options of a fine-tuned row before anything is extracted.

    Raises:
        CheckpointError: The row is asked for, and the model cannot be used.
        UsageError: The row is not asked for, and an option of it is given.
    """
    if asked:
        require_head(model, TASKS[task])
    else:
        refuse_without_finetuning("finetuning_epochs", "finetuning_rate")


def train(
    model: torch.nn.Module,
    lengths: Sequence[int],
    make_batch: MakeBatch,
    settings: Settings,
    folder: Path,
    *,
    identity: Mapping[str, Any],
    evaluate: Callable[[], float] | None = None,
    progress: Progress,
) -> History:
    """Train a model in place by the loss that it returns, and keep the weights of the best epoch.

    A run that was killed is continued from its last checkpoint, to the same weights. A training that has finished is
    loaded. Call `discard` when its results are written.

    Args:
        model: A model of transformers, on any device; it is moved to that of the settings.
        lengths: The tokens of each example.
        make_batch: Makes the inputs of examples.
        settings: The settings of training.
        folder: Where the checkpoint is.
        identity: What else decides the weights: the model's digest, the data's digest, settings of the recipe.
        evaluate: Returns the score on dev, higher is better; it is called after each epoch.
        progress: Takes the reports.

    Raises:
        StoreError: The folder has a training with other settings, or something else in its place.
        RunError: The loss is not finite.
    """
    device = resolve_device(settings.device)[0]
    model.to(device)
    optimizer = torch.optim.AdamW(_groups(model, settings.weight_decay), lr=settings.learning_rate, fused=True)
    decides = {name: value for name, value in asdict(settings).items() if name not in ("device", "save_every")}
    checkpoint = _Checkpoint(folder / _CHECKPOINT, {**identity, **decides})
    history = checkpoint.load(model, optimizer)
    n_steps = math.ceil(len(lengths) / settings.batch_size)
    started = time.perf_counter() - history.seconds
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        while not history.is_finished:
            loss = checkpoint.loss
            for batch in _batches(lengths, settings, history.epoch, history.step - history.epoch * n_steps):
                _set_rate(optimizer, settings, history.step, n_steps * settings.epochs)
                loss += _step(model, optimizer, make_batch, batch, settings, history.step, device)
                history.step += 1
                progress.stage(f"epoch {history.epoch + 1}", history.step, n_steps * settings.epochs)
                history.seconds = time.perf_counter() - started
                if history.step % settings.save_every == 0 and history.step % n_steps:
                    checkpoint.save(model, optimizer, history, loss)
            _end_epoch(history, loss / n_steps, evaluate, settings)
            history.seconds = time.perf_counter() - started
            if history.best_epoch == history.epoch:
                checkpoint.best = _copied(model) if evaluate is not None else None
            checkpoint.save(model, optimizer, history, 0.0)
    if checkpoint.best is not None:
        model.load_state_dict(checkpoint.best)
    model.eval()
    return history


def discard(folder: Path) -> None:
    """Remove the checkpoint of a training whose results are written."""
    (folder / _CHECKPOINT).unlink(missing_ok=True)


def digest_of(values: object) -> str:
    """Return a sha256 (hex) of JSON values, for `identity`."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class _Checkpoint:
    """The state of a training on disk, replaced in one step."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._identity = json.loads(json.dumps(identity))
        self.best: dict[str, torch.Tensor] | None = None
        self.loss = 0.0

    def load(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> History:
        """Load the state into a model and its optimizer; return how far it is."""
        if not self._path.exists():
            return History()
        try:
            state = torch.load(self._path, map_location="cpu", weights_only=True)
            fields = differing(state["identity"], self._identity)
        except Exception as error:  # torch has no class of its own for files that it cannot read
            raise StoreError(f"{self._path}: is not a checkpoint of bertfeat; choose another --out") from error
        if fields:
            raise StoreError(
                f"{self._path.parent}: has an unfinished training with other settings ({named(fields)}); repeat its "
                f"settings, choose another --out, or remove {self._path.name}"
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        self.best, self.loss = state["best"], state["loss"]
        return History(**state["history"])

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, history: History, loss: float) -> None:
        """Write the state beside the old one, then put it in its place."""
        self.loss = loss
        self._path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "identity": self._identity,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "best": self.best,
            "loss": loss,
            "history": asdict(history),
        }
        # Under one name, so that kills leave at most one.
        with publish_file(self._path, aside=self._path.with_suffix(".tmp")) as sink:
            torch.save(state, cast("IO[bytes]", sink))


def _groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the weights that are trained; biases and norms do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]


def _batches(lengths: Sequence[int], settings: Settings, epoch: int, first: int) -> Iterator[list[int]]:
    """Yield the batches of an epoch from number `first` on; the examples of a batch are of similar length."""
    random = np.random.default_rng([settings.seed, epoch])
    order, tokens = random.permutation(len(lengths)), np.asarray(lengths)
    size = settings.batch_size
    step = size * _SORTED_BATCHES
    parts = [part[np.argsort(-tokens[part], kind="stable")] for part in np.split(order, range(step, len(order), step))]
    batches = [part[at : at + size].tolist() for part in parts for at in range(0, len(part), size)]
    for number in random.permutation(len(batches)).tolist()[first:]:
        yield batches[number]


def _step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    make_batch: MakeBatch,
    batch: Sequence[int],
    settings: Settings,
    step: int,
    device: torch.device,
) -> float:
    """Train on one batch; return its loss."""
    model.train()
    torch.manual_seed(int(np.random.SeedSequence([settings.seed, step]).generate_state(1)[0]))
    inputs = make_batch(batch, np.random.default_rng([settings.seed, step]))
    loss = model(**{name: values.to(device) for name, values in inputs.items()}).loss
    if not math.isfinite(value := float(loss.item())):
        raise RunError(
            f"step {step + 1}: the loss is {value}; use a lower --learning-rate than {settings.learning_rate:g}"
        )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRADIENT_NORM)
    optimizer.step()
    return value


def _set_rate(optimizer: torch.optim.Optimizer, settings: Settings, step: int, n_steps: int) -> None:
    warmup = max(1, n_steps // 10)
    share = (step + 1) / warmup if step < warmup else (n_steps - step) / max(1, n_steps - warmup)
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * share


def _end_epoch(history: History, loss: float, evaluate: Callable[[], float] | None, settings: Settings) -> None:
    history.epoch += 1
    history.losses.append(loss)
    if evaluate is not None:
        history.scores.append(evaluate())
    is_best = evaluate is None or history.scores[-1] > max(history.scores[:-1], default=-math.inf)
    # A tagger may have an F1 of 0 for some epochs, until it finds its first entity.
    is_best |= not any(history.scores)
    history.best_epoch = history.epoch if is_best else history.best_epoch
    patience = settings.patience if evaluate is not None and settings.patience else settings.epochs
    history.is_finished = history.epoch >= settings.epochs or history.epoch - history.best_epoch >= patience


def _copied(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: values.detach().cpu().clone() for name, values in model.state_dict().items()}
