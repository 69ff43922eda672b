"""Training of a whole model by transformers' Trainer, for the recipes: its settings, its course, and its resumption."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import transformers
from torch.utils.data import DataLoader

from bertfeat.cli.options import refuse_given, together
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import RunError, require
from bertfeat.pipelines._models import require_head
from bertfeat.pipelines._recipe import CHECKPOINTS
from bertfeat.progress import Progress, reporting

#: task -> the kind of head
TASKS = {"classify": "sequence", "tag": "token", "regress": "sequence", "pair": "sequence"}
#: Learning rates.
RATE = click.FloatRange(min=0, min_open=True)
#: Options that have no effect on the heads of frozen features.
FOR_FINETUNING = ("learning_rate", "epochs", "batch_size", "patience")
_COUNT = click.IntRange(min=1)
#: The options of `Settings`.
training_options = together(
    click.option("--learning-rate", type=RATE, help="The highest one; by default, by the model's size."),
    click.option("--epochs", type=_COUNT, default=4, show_default=True, help="The most epochs."),
    click.option("--batch-size", type=_COUNT, default=16, show_default=True),
    click.option("--patience", type=_COUNT, help="Stop after N epochs without a better score."),
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True),
    click.option("--device", type=click.Choice(["auto", "cpu"]), default="auto", show_default=True),
)
#: Those of a recipe that compares frozen features with a fine-tuned model.
finetuning_options = together(
    click.option("--with-finetuning", is_flag=True, help="Also train the whole model, by the options below."),
    training_options,
)


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


def check_finetuning(model: str, head: str, options: Sequence[str] = FOR_FINETUNING, *, asked: bool) -> None:
    """Check before anything is extracted that a model has a head to train, or that no option of it is given in vain."""
    if asked:
        require("accelerate", what="--with-finetuning needs")
        require_head(model, head)
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
    output: Path,
    *,
    collator: Any,
    made_of: object,
    dev: Any,
    score: Callable[[Any], float],
    judge: Callable[[Any, Any], Any] | None = None,
) -> Trainer:
    """Return the trainer of a model, which is trained in place; the epoch with the best `score` on `dev` is kept.

    `made_of`, JSON values that decide the weights, and the settings name the folder of the checkpoints.
    """
    decides = json.dumps([made_of, {**asdict(settings), "device": None}], sort_keys=True)

    def metrics(predicted: Any) -> dict[str, float]:
        value = score(predicted)
        # While the score is 0, as that of a tagger until its first entity, a later epoch is a better one.
        return {"value": value, "score": value or -1 / (1 + trainer.state.global_step)}

    arguments = transformers.TrainingArguments(
        output_dir=str(output / CHECKPOINTS / hashlib.sha256(decides.encode()).hexdigest()[:16]),
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
        train_sampling_strategy="group_by_length",
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
