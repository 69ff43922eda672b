"""Models with a head of transformers, for the recipes that train: opened safely, frozen in part, and saved whole."""

from __future__ import annotations

import contextlib
import inspect
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from bertfeat.durable.publication import publish_folder
from bertfeat.encoder import hub
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.entry_points import encoder_of
from bertfeat.encoder.layers import parse_layers
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import CheckpointError, ConfigError, checkpoint_errors

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


@dataclass(frozen=True, slots=True)
class TaskModel:
    """A model with a head, its tokenizer, its files, and the names of the weights that were drawn at random."""

    checkpoint: Checkpoint
    model: Any
    tokenizer: Any
    new_weights: tuple[str, ...]


def has_head(model_type: str, head: str) -> bool:
    """Return whether transformers has such a head for a type of models."""
    known = transformers.CONFIG_MAPPING
    return model_type in known and known[model_type] in getattr(transformers, HEADS[head][1])


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
    folder = checkpoint.folder
    with torch.random.fork_rng(devices=[]), no_progress_bars(), checkpoint_errors(folder, "its files do not load"):
        torch.manual_seed(seed)
        model, report = getattr(transformers, HEADS[head][0]).from_pretrained(
            folder,
            config=transformers.AutoConfig.from_pretrained(folder, local_files_only=True, **config),
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            # transformers chooses: a config.json may name code on the hub.
            attn_implementation=None,
        )
        # Byte-level tokenizers take lists of words only with a space before each word.
        spaces = {"add_prefix_space": True} if head == "token" else {}
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **spaces
        )
    if not tokenizer.is_fast or len(tokenizer) > checkpoint.n_ids:
        raise CheckpointError(f"{name}: its tokenizer gives no offsets or does not fit the model; use another model")
    # GPT-2 has no token for padding.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    # XLNet, whose positions are relative, reads a text's last token.
    reads_last = head == "sequence" and getattr(model.config, "summary_type", None) == "last"
    tokenizer.padding_side = "left" if reads_last else "right"
    taken = inspect.signature(model.forward).parameters
    tokenizer.model_input_names = [column for column in tokenizer.model_input_names if column in taken]
    # A head for another number of classes does not fit, and is drawn at random.
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


def static_settings(model: str, static: str | None) -> dict[str, Any]:
    """Check that only `static` has static vectors; return its settings: each word that it lacks has zeros."""
    if open_checkpoint(model).static is not None:
        raise ConfigError(f"`model={model!r}` holds static vectors, without layers to compare; pass it as `static`")
    if static is None:
        return {}
    vectors = open_checkpoint(static).static
    if vectors is None:
        raise ConfigError(f"`static={static!r}` is a contextual model; name word vectors or a model2vec folder")
    return {"model": static, "layers": "0", "unknown_words": "null" if vectors.words is None else "zero"}
