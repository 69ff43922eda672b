"""Models with a head of transformers, opened safely, trained by its Trainer, resumed after a kill, and saved whole."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

from bertfeat.cli.options import refuse_given, together
from bertfeat.durable.publication import publish_folder
from bertfeat.encoder import hub
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.entry_points import encoder_of
from bertfeat.encoder.layers import parse_layers
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import CheckpointError, ConfigError, RunError, checkpoint_errors, require
from bertfeat.pipelines._recipe import CHECKPOINTS
from bertfeat.progress import Progress, reporting

#: The label of a token that the heads of transformers leave out of the loss.
NO_LABEL = -100
# A file in that folder, which says that a recipe may replace it.
_MARK = "made_by_a_recipe.json"
# kind of head -> transformers' class, the model types that have one, and what the head is for
HEADS = {
    "sequence": ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING", "whole texts"),
    "token": ("AutoModelForTokenClassification", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING", "words"),
    "question": ("AutoModelForQuestionAnswering", "MODEL_FOR_QUESTION_ANSWERING_MAPPING", "questions"),
    "masked": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING", "masked words"),
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING", "next words"),
}
TASKS = {"classify": "sequence", "tag": "token", "regress": "sequence", "pair": "sequence"}
RATE = click.FloatRange(min=0, min_open=True)
#: Options that have no effect on the heads of frozen features.
FOR_FINETUNING = ("learning_rate", "epochs", "batch_size", "patience")
_COUNT = click.IntRange(min=1)
training_options = together(
    click.option("--learning-rate", type=RATE, help="The highest one; by default, by the model's size."),
    click.option("--epochs", type=_COUNT, default=4, show_default=True, help="The most epochs."),
    click.option("--batch-size", type=_COUNT, default=16, show_default=True),
    click.option("--patience", type=_COUNT, help="Stop after N epochs without a better score."),
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True),
    click.option("--device", type=click.Choice(["auto", "cpu"]), default="auto", show_default=True),
)
finetuning_options = together(
    click.option("--with-finetuning", is_flag=True, help="Also train the whole model, by the options below."),
    training_options,
)


@dataclass(frozen=True, slots=True)
class TaskModel:
    """A model with a head, its tokenizer, its files, and the names of the weights that were drawn at random."""

    checkpoint: Checkpoint
    model: Any
    tokenizer: Any
    new_weights: tuple[str, ...]


def has_head(model_type: str, head: str) -> bool:
    """Return whether transformers has such a head for a type of models."""
    return transformers.CONFIG_MAPPING[model_type] in getattr(transformers, HEADS[head][1])


def require_head(name: str, head: str) -> Checkpoint:
    """Return the files of a model whose family has such a head; its weights may still be missing."""
    checkpoint = open_checkpoint(name)
    kind = checkpoint.family.model_type
    if not has_head(kind, head):
        raise CheckpointError(f"{name}: transformers has no head for {HEADS[head][2]} for {kind}; use another model")
    return checkpoint


def open_task_model(name: str, head: str, *, seed: int = 0, trained: bool = False, **config: Any) -> TaskModel:
    """Load a model with a head; what its files lack is drawn at random, which `trained` refuses."""
    checkpoint = require_head(name, head)
    folder, safe = checkpoint.folder, {"local_files_only": True, "trust_remote_code": False}
    with torch.random.fork_rng(devices=[]), no_progress_bars(), checkpoint_errors(folder, "its files do not load"):
        torch.manual_seed(seed)
        model, report = getattr(transformers, HEADS[head][0]).from_pretrained(
            folder,
            config=transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **config),
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            # transformers chooses: a config.json may name code on the hub.
            attn_implementation=None,
            **safe,
        )
        # Byte-level tokenizers take lists of words only with a space before each word.
        spaces = {"add_prefix_space": True} if head == "token" else {}
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **safe, **spaces)
    # GPT-2 has no token for padding.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    # XLNet, whose positions are relative, reads a text's last token.
    reads_last = head == "sequence" and getattr(model.config, "summary_type", None) == "last"
    tokenizer.padding_side = "left" if reads_last else "right"
    taken = inspect.signature(model.forward).parameters
    tokenizer.model_input_names = [column for column in tokenizer.model_input_names if column in taken]
    new = tuple(sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}))
    # transformers leaves the biases of some heads as they are in memory (5.23: Longformer, Nyströmformer and others).
    for key, values in model.named_parameters():
        if key in new and key.endswith("bias"):
            nn.init.zeros_(values)
    inside = [key for key in new if key.startswith(f"{model.base_model_prefix}.") and ".pooler." not in key]
    if inside or (trained and new):
        what = "that weight of the encoder in its size" if inside else f"a trained head for {HEADS[head][2]}"
        raise CheckpointError(f"{name}: its files do not have {what} ({(inside or new)[0]}); use another model")
    return TaskModel(checkpoint, model, tokenizer, new)


def rows_of(encoded: Any) -> list[dict[str, Any]]:
    """Return the inputs of each window of a batch of a tokenizer."""
    return [dict(zip(encoded, values, strict=True)) for values in zip(*encoded.values(), strict=True)]


def freeze(opened: TaskModel, layers: str) -> tuple[int, ...]:
    """Keep layers as they are while the others are trained; layer 0 is the embeddings. Return the layers."""
    n_layers = opened.checkpoint.n_layers
    chosen = parse_layers(layers, n_layers, model=opened.checkpoint.name)
    base = opened.model.base_model
    encoder = encoder_of(base)
    blocks: list[nn.ModuleList] = []
    for module in encoder.modules():
        # XLM has its blocks in parts: a list of attentions, one of norms, ...
        lists = [part for part in module.children() if isinstance(part, nn.ModuleList) and len(part) == n_layers]
        blocks = blocks or lists
    if 0 in chosen:
        # Beside the embeddings: what all blocks share, such as the relative positions of DeBERTa and MPNet.
        later = [*blocks, *filter(None, [getattr(base, "pooler", None)])]
        kept = {id(parameter) for module in later for parameter in module.parameters()}
        for parameter in encoder.parameters():
            parameter.requires_grad_(requires_grad=id(parameter) in kept)
    for layer in chosen:
        for part in blocks if layer else ():
            part[layer - 1].requires_grad_(requires_grad=False)
    return chosen


def check_model_place(opened: TaskModel, target: Path) -> None:
    """Check that a trained model may be written to a folder."""
    if opened.checkpoint.folder == target.resolve():
        raise ConfigError(f"{target}: is the model to start from, and would be replaced; choose another --output")
    _check_own(target)


def replace_model(opened: TaskModel, target: Path) -> int:
    """Write weights (safetensors), config and tokenizer in the place of an older model; return their bytes."""
    with new_model(target, opened.checkpoint.name) as written:
        opened.model.save_pretrained(written)
        opened.tokenizer.save_pretrained(written)
    return sum(path.stat().st_size for path in target.iterdir())


def initialize(name: str, revision: str | None, target: Path, *, seed: int) -> None:
    """Save a model with the config and the tokenizer of another one, and with transformers' initialization."""
    checkpoint = open_checkpoint(name, revision)
    folder = checkpoint.folder
    if checkpoint.facts is None:
        raise ConfigError(f"{name}: holds static vectors, which have no initialization; name a model with an encoder")
    copied = hub.wanted_files(folder, weights=False)
    if any(file.endswith(".safetensors") for file in copied):
        # Dense layers of sentence-transformers, which are trained.
        copied = [file for file in copied if file != "modules.json" and "/" not in file]
    versions = {library: version(library) for library in ("transformers", "torch")}
    with new_model(target, name, revision=checkpoint.revision, seed=seed, **versions) as new:
        with torch.random.fork_rng(devices=[]), checkpoint_errors(folder, "transformers cannot make its model"):
            torch.manual_seed(seed)
            # A config.json may name code on the hub as its attention, which never runs here.
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
            getattr(transformers, checkpoint.facts.model_class)(config).save_pretrained(new)
        for file in copied:
            (new / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / file, new / file)


@contextlib.contextmanager
def new_model(target: Path, made_of: str, **facts: Any) -> Iterator[Path]:
    """Yield a folder for the files of a model, which takes the place of an older one that a recipe made."""
    with publish_folder(target, lambda: _check_own(target)) as written, no_progress_bars():
        yield written
        (written / _MARK).write_text(json.dumps({"model": made_of, **facts}) + "\n", encoding="utf-8")


def _check_own(target: Path) -> None:
    if target.exists() and not (target / _MARK).is_file():
        raise ConfigError(f"{target}: is there and was not made by a recipe; choose another --output")


def static_settings(static: str | None) -> dict[str, Any]:
    """Check that `static` has static vectors; return its settings: each word that it lacks has zeros."""
    if static is None:
        return {}
    vectors = open_checkpoint(static).static
    if vectors is None:
        raise ConfigError(f"`static={static!r}` is a contextual model; name word vectors or a model2vec folder")
    return {"model": static, "layers": "0", "unknown_words": "null" if vectors.words is None else "zero"}


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
    """Return the trainer of a model, which is trained in place; the epoch with the best `score` on `dev` is kept."""
    # These values name the folder of the checkpoints.
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
        restore_callback_states_from_checkpoint=True,
        remove_unused_columns=False,
        use_cpu=settings.device == "cpu",
        dataloader_pin_memory=False,
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
