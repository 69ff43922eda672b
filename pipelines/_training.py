"""Training of a whole model by transformers' Trainer, for the recipes: its settings, its course, and its resumption."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import transformers
from torch.utils.data import DataLoader

from bertfeat.cli.options import refuse_given
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import RunError, require
from bertfeat.pipelines._models import require_head
from bertfeat.progress import Progress, reporting

_CHECKPOINTS = "training"
#: task -> the kind of head
TASKS = {"classify": "sequence", "tag": "token", "regress": "sequence", "pair": "sequence"}
#: Seeds of numpy, torch and polars.
SEED = click.IntRange(min=0, max=2**32 - 1)
_RATE: dict[str, Any] = {
    "type": click.FloatRange(min=0, min_open=True),
    "help": "The highest one; by default, by the model's size.",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of training; without a `learning_rate` it is `usual_rate`, and without `patience` all epochs are run."""

    learning_rate: float | None
    epochs: int
    batch_size: int
    patience: int | None = None
    seed: int = 0
    device: str = "auto"


@dataclass(frozen=True)
class History:
    """The course of a training: the mean loss and the score on dev of each epoch, and which epoch is kept."""

    step: int
    epoch: int
    losses: Sequence[float]
    scores: Sequence[float]
    best_epoch: int
    learning_rate: float
    seconds: float


def usual_rate(model: Any) -> float:
    """Return the learning rate for a size: 5e-5 for BERT-base (Devlin et al. 2019), by the root of the parameters."""
    return float(f"{5e-5 * math.sqrt(85e6 / model.num_parameters(exclude_embeddings=True)):.1e}")


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `Settings` to a command."""
    for option in (
        click.option("--device", type=click.Choice(["auto", "cpu"]), default="auto", show_default=True),
        click.option("--seed", type=SEED, default=0, show_default=True),
        click.option("--patience", type=click.IntRange(min=1), help="Stop after N epochs without a better score."),
        click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True),
        click.option("--epochs", type=click.IntRange(min=1), default=4, show_default=True, help="The most epochs."),
        click.option("--learning-rate", **_RATE),
    ):
        function = option(function)
    return function


def finetuning_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a fine-tuned row to the command of a recipe that compares features."""
    for option in (
        click.option("--finetuning-rate", **_RATE),
        click.option("--finetuning-epochs", type=click.IntRange(min=1), default=4, show_default=True),
        click.option("--with-finetuning", is_flag=True, help="Add a row: the model itself is trained."),
    ):
        function = option(function)
    return function


def check_finetuning(
    model: str, task: str, *, asked: bool, options: Sequence[str] = ("finetuning_epochs", "finetuning_rate")
) -> None:
    """Check before anything is extracted that a model can be fine-tuned, or that no option of it is given in vain."""
    if asked:
        require("accelerate", what="--with-finetuning needs")
        require_head(model, TASKS.get(task, task))
    else:
        refuse_given(options, "is for fine-tuning; pass --with-finetuning too, or drop it")


class Trainer(transformers.Trainer):  # type: ignore[misc]  # transformers has no types
    """transformers' Trainer, which predicts examples in their order."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the batches of dev, or of another data set; the sampler of training would sort them by length."""
        found = self.eval_dataset if eval_dataset is None else eval_dataset
        loader = DataLoader(found, self.args.eval_batch_size, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)

    get_test_dataloader = get_eval_dataloader


class _Reports(transformers.TrainerCallback):  # type: ignore[misc]  # transformers has no types
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._progress.stage(f"epoch {math.ceil(state.epoch)}", state.global_step, state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        if not math.isfinite(loss := logs.get("loss", 0.0)):
            rate = f"{args.learning_rate:g}"
            raise RunError(f"step {state.global_step}: the loss is {loss}; use a lower --learning-rate than {rate}")


def make_trainer(
    model: Any,
    examples: Any,
    settings: Settings,
    folder: Path,
    *,
    collator: Any,
    made_of: Mapping[str, Any],
    dev: Any,
    score: Callable[[Any], float],
    judge: Callable[[Any, Any], Any] | None = None,
    **more: Any,
) -> Trainer:
    """Return the trainer of a model, which is trained in place.

    Checkpoints are written in a folder of their own for other settings or other data: `made_of` says what decides the
    weights beside the settings. `score` is that of the predictions of `dev` after each epoch, of which the best one is
    kept; without `dev`, the last. `judge` makes of logits and labels what is kept as predictions. `more` are other
    arguments of TrainingArguments.
    """
    decides = digest_of({**made_of, **asdict(settings), "device": None})

    def metrics(predicted: Any) -> dict[str, float]:
        value = score(predicted)
        # While the score is 0, as that of a tagger until its first entity, a later epoch is a better one.
        return {"value": value, "score": value or -1 / (1 + trainer.state.global_step)}

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / _CHECKPOINTS / decides[:16]),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate or usual_rate(model),
        warmup_steps=0.1,
        weight_decay=0.01,
        seed=settings.seed,
        eval_strategy="no" if dev is None else "epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_strategy="epoch",
        logging_nan_inf_filter=False,
        load_best_model_at_end=dev is not None,
        metric_for_best_model="score",
        greater_is_better=True,
        restore_callback_states_from_checkpoint=True,
        remove_unused_columns=False,
        use_cpu=settings.device == "cpu",
        dataloader_pin_memory=False,
        report_to="none",
        log_level="error",
        disable_tqdm=True,
        **{"train_sampling_strategy": "group_by_length", **more},
    )
    trainer = Trainer(
        model,
        arguments,
        data_collator=collator,
        train_dataset=examples,
        eval_dataset=dev,
        preprocess_logits_for_metrics=judge,
        compute_metrics=metrics,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    if settings.patience is not None and dev is not None:
        trainer.add_callback(transformers.EarlyStoppingCallback(settings.patience))
    return trainer


def train(trainer: Trainer) -> History:
    """Train from the last checkpoint on, if there is one, and keep the weights of the best epoch on dev."""
    # The state is the last file of a checkpoint: without it, a process was killed while it wrote one.
    whole = [path.parent for path in Path(trainer.args.output_dir).glob("checkpoint-*/trainer_state.json")]
    last = max(whole, key=lambda path: int(path.name.partition("-")[2]), default=None)
    with reporting(None) as progress, no_progress_bars():
        trainer.add_callback(_Reports(progress))
        done = trainer.train(resume_from_checkpoint=None if last is None else str(last))
    # What is predicted from now on is not dev.
    trainer.compute_metrics = None
    log = trainer.state.log_history
    losses = [entry["loss"] for entry in log if "loss" in entry]
    best = trainer.state.best_global_step or trainer.state.global_step
    return History(
        step=trainer.state.global_step,
        epoch=len(losses),
        losses=losses,
        scores=[entry["eval_value"] for entry in log if "eval_value" in entry],
        best_epoch=best * len(losses) // trainer.state.global_step,
        learning_rate=trainer.args.learning_rate,
        seconds=done.metrics["train_runtime"],
    )


def discard(folder: Path) -> None:
    """Remove the checkpoints of trainings whose results are written."""
    shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)


def digest_of(values: object) -> str:
    """Return a sha256 (hex) of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
