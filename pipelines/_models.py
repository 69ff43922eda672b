"""Models with a head of transformers, for the recipes that train: opened safely, frozen in part, and saved whole."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertfeat.durable.publication import publish_folder
from bertfeat.encoder import hub
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.comparison import last_parts
from bertfeat.encoder.discovery import encoder_of
from bertfeat.encoder.layers import parse_layers
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import CheckpointError, ConfigError, checkpoint_errors

#: The label of a token that the heads of transformers leave out of the loss.
NO_LABEL = -100
#: The folder of the trained model, beside the results.
MODEL = "model"
# A file in that folder, which says that a recipe may replace it.
_MARK = "made_by_a_recipe.json"
# kind of head -> transformers' class, and what people call the head
HEADS = {
    "sequence": ("AutoModelForSequenceClassification", "head for whole texts"),
    "token": ("AutoModelForTokenClassification", "head for words"),
    "question": ("AutoModelForQuestionAnswering", "head for questions"),
    "masked": ("AutoModelForMaskedLM", "head for masked words"),
    "pretraining": ("AutoModelForPreTraining", "heads for pre-training"),
    "causal": ("AutoModelForCausalLM", "head for next words"),
}


@dataclass(frozen=True, slots=True)
class TaskModel:
    """A model with a head, and what it was made of.

    Attributes:
        checkpoint: The model's files, checked.
        model: The model of transformers, on the CPU, in float32.
        tokenizer: Its fast tokenizer, of transformers.
        new_weights: The weights that the files do not have; they are drawn at random.
    """

    checkpoint: Checkpoint
    model: Any
    tokenizer: Any
    new_weights: tuple[str, ...]

    @property
    def max_length(self) -> int:
        """The most tokens of a window, special tokens included."""
        return self.checkpoint.max_length


def open_task_model(name: str, head: str, *, seed: int = 0, trained: bool = False, **config: Any) -> TaskModel:
    """Load a model with a head of transformers; what its files lack is drawn at random.

    Args:
        name: Installed model package, folder, or hub id.
        head: One of `HEADS`.
        seed: The seed of weights that the files lack.
        trained: Whether the files must have the head too.
        config: Values that replace those of config.json, such as `num_labels`.

    Raises:
        CheckpointError: There is no such model, its family has no such head, or a weight is missing that must be there.
    """
    import transformers

    checkpoint = require_head(name, head)
    class_name, title = HEADS[head]
    auto = getattr(transformers, class_name)
    with checkpoint_errors(checkpoint.folder, "config.json does not fit its family"):
        settings = transformers.AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True, **config)
    with (
        torch.random.fork_rng(devices=[]),
        no_progress_bars(),
        checkpoint_errors(checkpoint.folder, "its weights do not load"),
    ):
        torch.manual_seed(seed)
        model, report = auto.from_pretrained(
            checkpoint.folder,
            config=settings,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            # transformers chooses: a config.json may name code on the hub.
            attn_implementation=None,
        )
    # A head for another number of classes does not fit, and is drawn at random.
    new = tuple(sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}))
    # transformers leaves the biases of some heads as they are in memory (5.23: Longformer, Nyströmformer and others).
    for key, values in model.named_parameters():
        if key in new and key.endswith("bias"):
            torch.nn.init.zeros_(values)
    inside = [key for key in new if key.startswith(f"{model.base_model_prefix}.") and ".pooler." not in key]
    if inside or (trained and new):
        what = "that weight of the encoder in its size" if inside else f"a trained {title}"
        raise CheckpointError(f"{name}: its files do not have {what} ({(inside or new)[0]}); use another model")
    return TaskModel(checkpoint, model, load_tokenizer(checkpoint), new)


def require_head(name: str, head: str) -> Checkpoint:
    """Return the files of a model whose family has such a head in transformers; its weights may still be missing.

    Raises:
        CheckpointError: There is no such model, or its family has no such head.
    """
    checkpoint = open_checkpoint(name)
    if not has_head(checkpoint, head):
        kind = checkpoint.family.model_type
        raise CheckpointError(f"{name}: transformers has no {HEADS[head][1]} for {kind}; use another model")
    return checkpoint


def has_head(checkpoint: Checkpoint, head: str) -> bool:
    """Return whether transformers has such a head for the model's family; its weights may still be missing."""
    if checkpoint.static is not None:
        return False
    import transformers

    auto = getattr(transformers, HEADS[head][0])
    return transformers.CONFIG_MAPPING[checkpoint.family.model_type] in auto._model_mapping


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Return transformers' fast tokenizer of a model, which gives offsets.

    Raises:
        CheckpointError: The model has no fast tokenizer.
    """
    import transformers

    with checkpoint_errors(checkpoint.folder, "its tokenizer does not load"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            checkpoint.folder, local_files_only=True, trust_remote_code=False
        )
    if not tokenizer.is_fast:
        raise CheckpointError(f"{checkpoint.name}: its tokenizer gives no offsets; save a tokenizer.json")
    return tokenizer


def freeze(opened: TaskModel, layers: str) -> tuple[int, ...]:
    """Keep layers as they are while the others are trained; layer 0 is the embeddings. Return the layers.

    Raises:
        ConfigError: There is no such layer, or the blocks share their weights.
    """
    n_layers = opened.checkpoint.n_layers
    chosen = parse_layers(layers, n_layers, model=opened.checkpoint.name)
    encoder = encoder_of(opened.model.base_model)
    # XLM has its blocks in parts: a list of attentions, one of norms, ...
    lists = next(filter(None, (_lists(module, n_layers) for module in encoder.modules())), None)
    if lists is None:
        kind = opened.checkpoint.family.model_type
        raise ConfigError(f"{kind}: its blocks cannot be frozen one by one; leave out --freeze")
    if 0 in chosen:
        # Beside the embeddings: what all blocks share, such as the relative positions of DeBERTa and MPNet.
        ids = torch.arange(min(5, opened.checkpoint.max_length))[None]
        with torch.no_grad():
            norms = last_parts(encoder.eval(), lambda: encoder(input_ids=ids)[0][0])
        later = [*lists, getattr(opened.model.base_model, "pooler", None), *map(encoder.get_submodule, norms)]
        kept = {id(parameter) for module in later if module for parameter in module.parameters()}
        for parameter in encoder.parameters():
            if id(parameter) not in kept:
                parameter.requires_grad_(requires_grad=False)
    for layer in chosen:
        for blocks in lists if layer else ():
            blocks[layer - 1].requires_grad_(requires_grad=False)
    if not any(parameter.requires_grad for parameter in opened.model.parameters()):
        raise ConfigError("--freeze leaves nothing to train; name fewer layers")
    return chosen


def _lists(module: nn.Module, n_layers: int) -> list[nn.ModuleList]:
    return [part for part in module.children() if isinstance(part, nn.ModuleList) and len(part) == n_layers]


def save_model(opened: TaskModel, folder: Path) -> None:
    """Write weights (safetensors), config and tokenizer into a folder that `--model` takes."""
    with no_progress_bars():
        opened.model.save_pretrained(folder)
    opened.tokenizer.save_pretrained(folder)


def check_model_place(opened: TaskModel, target: Path) -> None:
    """Check that a trained model may be written to a folder.

    Raises:
        ConfigError: The folder is there and was not made by a recipe, or it is that of the model to start from.
    """
    if opened.checkpoint.folder == target.resolve():
        raise ConfigError(f"{target}: is the model to start from, and would be replaced; choose another --out")
    _check_own(target)


def replace_model(opened: TaskModel, target: Path) -> int:
    """Save a model in the place of an older one; return its size in bytes.

    Raises:
        RunError: The system refused; an older model still exists.
    """
    with new_model(target, opened.checkpoint.name) as written:
        save_model(opened, written)
    return sum(path.stat().st_size for path in target.iterdir())


def initialise(name: str, revision: str | None, target: Path, *, seed: int) -> None:
    """Save a model with the config and the tokenizer of another one, and with transformers' initialisation.

    Args:
        name: Installed model package, folder, or hub id.
        revision: Branch, tag or commit of a hub model.
        target: The folder to write; one that a recipe made is replaced.
        seed: The seed of the weights.

    Raises:
        CheckpointError: There is no such model.
        ConfigError: The model holds static vectors, or the folder is there and was not made by a recipe.
        RunError: The system refused; an older model still exists.
    """
    import transformers

    checkpoint = open_checkpoint(name, revision)
    if checkpoint.facts is None:
        raise ConfigError(f"{name}: holds static vectors, which have no initialisation; name a model with an encoder")
    copied = hub.wanted_files(checkpoint.folder, weights=False)
    if any(file.endswith(".safetensors") for file in copied):
        # Dense layers of sentence-transformers, which are trained.
        copied = [file for file in copied if file != "modules.json" and "/" not in file]
    versions = {library: version(library) for library in ("transformers", "torch")}
    with new_model(target, name, revision=checkpoint.revision, seed=seed, **versions) as new:
        with (
            torch.random.fork_rng(devices=[]),
            no_progress_bars(),
            checkpoint_errors(checkpoint.folder, "transformers cannot make its model"),
        ):
            torch.manual_seed(seed)
            config = transformers.AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
            model_class = getattr(transformers, checkpoint.facts.model_class)
            # A config.json may name code on the hub as its attention, which never runs here.
            model = model_class._from_config(config, dtype=torch.float32, attn_implementation="eager")
            model.save_pretrained(new)
        for file in copied:
            (new / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(checkpoint.folder / file, new / file)


@contextlib.contextmanager
def new_model(target: Path, made_of: str, **facts: Any) -> Iterator[Path]:
    """Yield a folder for the files of a model, which takes the place of an older one that a recipe made.

    Args:
        target: Its place.
        made_of: The model that it was made of.
        facts: What else a file in the folder says of it.

    Raises:
        ConfigError: The folder is there and was not made by a recipe.
        RunError: The system refused; an older model still exists.
    """
    with publish_folder(target, lambda: _check_own(target)) as written:
        yield written
        (written / _MARK).write_text(json.dumps({"model": made_of, **facts}) + "\n", encoding="utf-8")


def _check_own(target: Path) -> None:
    if target.exists() and not (target / _MARK).is_file():
        raise ConfigError(f"{target}: is there and was not made by a recipe; choose another --out")
