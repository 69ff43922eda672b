"""Finder of models: finds a model by its name and checks its files before anything is loaded.

`open_checkpoint` imports neither torch nor transformers and runs nothing from the model's folder: it reads JSON and
the headers of safetensors files. `bertfeat.encoder.loading.load_encoder` then loads what is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfeat.encoder import hub
from bertfeat.encoder.families import family_of
from bertfeat.encoder.family import Family
from bertfeat.encoder.filedigests import named_digest, weights_digest
from bertfeat.encoder.modelconfig import config_digest
from bertfeat.encoder.modelplaces import Place, locate, model_root
from bertfeat.encoder.modeltypes import refusal_of
from bertfeat.encoder.randomweights import random_digest
from bertfeat.encoder.refusals import rope_fault, rope_length
from bertfeat.encoder.sentencefiles import read_prompts, read_sentence_model
from bertfeat.encoder.sentencemodel import Prompts, SentenceModel
from bertfeat.encoder.sentencesettings import MAX_TOKENIZER_BYTES, SAVE_AGAIN
from bertfeat.encoder.staticvectors import StaticVectors, facts_of
from bertfeat.encoder.tokenvectors import MODEL_TYPE, TokenVectors, open_token_vectors
from bertfeat.encoder.weights import SINGLE, WeightFiles, find_weights, inside, read_json
from bertfeat.encoder.wordvectors import open_word_vectors
from bertfeat.errors import CheckpointError
from bertfeat.records import ModelInfo

# Window length of a model with unlimited relative positions whose tokenizer names no usable length.
UNLIMITED_DEFAULT = 512

# Files that hold a whole tokenizer: the fast one, or what transformers turns into one without pickle.
_TOKENIZERS = {"tokenizer.json", "vocab.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model"}
_LIMITS = {
    "vocab_size": 10_000_000,
    "max_position_embeddings": 10_000_000,
    "n_positions": 10_000_000,
    "intermediate_size": 1_000_000,
    "type_vocab_size": 100_000,
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads", "n_head", "encoder_attention_heads"), 65_536),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "head_dim"), 65_536),
    "embedding_size": 65_536,
    "num_hidden_groups": 1_000,
    "inner_group_num": 1,
    "num_feedforward_networks": 1_000,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4_096),
    "rotary_dim": 1_024,
    "max_depth": 10_000,
    "num_labels": 1_000_000,
    "local_radius": 1_000_000,
    "global_block_size": 1_000_000,
    "relative_attention_max_distance": 1_000_000,
}
_MAX_LAYERS = 1_000
_MAX_HIDDEN = 65_536
_MAX_LENGTH = 1_000_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that was found and checked; no weight is loaded.

    Attributes:
        name: The name that the user gave.
        folder: The folder of its files, resolved; the file itself if it is one of word vectors.
        revision: The commit of a hub model, else None.
        family: How it is loaded and run.
        n_layers: Blocks; layers are 0 (embeddings) to `n_layers`.
        hidden_size: Width of every layer.
        n_ids: Rows of the embedding matrix in config.json; loading the weights checks it.
        max_length: Tokens that fit a window, special tokens included. This is the model's own limit. The settings of
            sentence-transformers and the tokenizer's `model_max_length` say what a model was tuned on.
        weights_files: The safetensors files, in name order; none with random weights.
        weights_sha256: sha256 (hex) of their bytes in that order; of random weights, see `random_digest`.
        tokenizer_sha256: sha256 (hex) over the tokenizer's files.
        n_values: Values in the weight files, unused heads included; None with random weights.
        is_bfloat16: Most of these values are bfloat16; with random weights, they never are.
        config: The content of config.json.
        random_weights: The seed of random weights; None for the weights of the files.
        converted_from: The commit of a hub model whose pickle files the hub's bot converted in `revision`, else None.
        static: Its static vectors, which have no encoder; None for all other families.
    """

    name: str
    folder: Path
    revision: str | None
    family: Family
    n_layers: int
    hidden_size: int
    n_ids: int
    max_length: int
    weights_files: tuple[Path, ...]
    weights_sha256: str
    tokenizer_sha256: str
    n_values: int | None
    is_bfloat16: bool
    config: Mapping[str, Any] = field(repr=False)
    random_weights: int | None = None
    converted_from: str | None = None
    static: StaticVectors | None = None

    @property
    def config_sha256(self) -> str:
        """sha256 (hex) over what decides vectors in config.json."""
        return config_digest(self.config)

    def info(self) -> ModelInfo:
        """Return what a plan keeps of the model."""
        return ModelInfo(
            name=self.name,
            revision=self.revision,
            family=self.family.model_type,
            weights_sha256=self.weights_sha256,
            tokenizer_sha256=self.tokenizer_sha256,
            n_layers=self.n_layers,
            hidden_size=self.hidden_size,
            max_length=self.max_length,
            n_parameters=self.n_values,
        )

    def sentence_model(self) -> SentenceModel | None:
        """Read how the model makes its own sentence embedding; None where its folder does not say.

        Raises:
            CheckpointError: The folder asks for something that is not supported, or its files are unsafe or malformed.

        Examples:
            >>> open_checkpoint("minilm").sentence_model().max_length
            256
        """
        if self.static is not None:
            return self.static.sentence_model() if isinstance(self.static, TokenVectors) else None
        has_weights = self.random_weights is None
        return read_sentence_model(self.folder, model_root(self.folder), self.hidden_size, has_weights=has_weights)

    def prompts(self) -> Prompts:
        """Read the model's prompts.

        Raises:
            CheckpointError: Their file is unsafe or malformed.
        """
        return read_prompts(self.folder, model_root(self.folder))


def open_checkpoint(name: str, revision: str | None = None, random_weights: int | None = None) -> Checkpoint:
    """Find a model and check its files.

    A name that begins with `.`, `/` or `~` is a folder or a file of word vectors. Any other is looked up as an
    installed model package, then as a folder or file, then on the hub.

    Args:
        name: The name of an installed model package (`minilm`), a folder, a file of word vectors, or a hub id
            (`owner/model`).
        revision: Branch, tag or commit of a hub model.
        random_weights: The seed of weights to draw. The files of trained weights are then neither needed nor read.

    Raises:
        CheckpointError: The model does not exist, or is incomplete, unsafe, or of a family that is not supported.

    Examples:
        >>> checkpoint = open_checkpoint("minilm")
        >>> checkpoint.family.model_type, checkpoint.n_layers, checkpoint.hidden_size, checkpoint.max_length
        ('bert', 6, 384, 512)
    """
    place = locate(name, revision, with_weights=random_weights is None)
    config, tokenizer_config = ({}, {}) if place.folder.is_file() else _read_configs(place.folder)
    if place.folder.is_file() or config.get("model_type") == MODEL_TYPE:
        if random_weights is not None:
            raise CheckpointError(
                f"`random_weights={random_weights}`: {name} holds static vectors, which are never drawn"
            )
        return Checkpoint(name=name, revision=place.commit, **_static_facts(place.folder, config))
    return _with_encoder(name, place, config, tokenizer_config, random_weights)


def _read_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read config.json and tokenizer_config.json, which need not be there; refuse what they must not ask for."""
    root = model_root(folder)
    path = folder / "config.json"
    if not os.path.lexists(path):
        # Folders of old sentence-transformers keep the model one folder deeper.
        remedy = SAVE_AGAIN if (folder / "modules.json").exists() else "is this a model folder?"
        raise CheckpointError(f"{folder}: no config.json in it; {remedy}")
    config = read_json(inside(path, root))
    path = folder / "tokenizer_config.json"
    tokenizer_config = read_json(inside(path, root)) if os.path.lexists(path) else {}
    _refuse_code(folder, config, tokenizer_config)
    return config, tokenizer_config


def _static_facts(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of static vectors: those of a file, or those of a folder of model2vec."""
    if folder.is_file():
        return facts_of(open_word_vectors(folder), folder, [], config)
    root, tokenizer = model_root(folder), folder / "tokenizer.json"
    _check_tokenizer_size(tokenizer, root)
    found = open_token_vectors(folder, inside(folder / SINGLE, root), config)
    return facts_of(found, folder, [tokenizer], config)


def _with_encoder(
    name: str, place: Place, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], random_weights: int | None
) -> Checkpoint:
    folder = place.folder
    family = _family(folder, config)
    n_layers, hidden_size, n_ids = _check_sizes(folder, family, config)
    tokenizer_files = _tokenizer_files(folder, model_root(folder), family)
    if random_weights is None:
        weights, digest = _trained_weights(name, place)
    else:
        weights, digest = None, random_digest(random_weights, config)
    return Checkpoint(
        name=name,
        folder=folder,
        revision=place.commit,
        family=family,
        n_layers=n_layers,
        hidden_size=hidden_size,
        n_ids=n_ids,
        max_length=_max_length(folder, family, config, tokenizer_config),
        weights_files=weights.files if weights else (),
        weights_sha256=digest,
        tokenizer_sha256=named_digest(tokenizer_files),
        n_values=weights.n_values if weights else None,
        is_bfloat16=weights is not None and weights.dtype == "BF16",
        config=config,
        random_weights=random_weights,
        converted_from=place.converted_from,
    )


def _trained_weights(name: str, place: Place) -> tuple[WeightFiles, str]:
    """Return the weight files and their digest."""
    weights = find_weights(place.folder, model_root(place.folder), (name, place.commit) if place.commit else None)
    digest = weights_digest(weights.files)
    if place.pinned not in (None, digest):
        raise CheckpointError(
            f"model package {name!r}: {weights.files[0]} has sha256 {digest}, not {place.pinned}; "
            "install the package again"
        )
    return weights, digest


def _refuse_code(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> None:
    for file, content in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        if content.get("auto_map"):
            model_type = str(config.get("model_type"))
            known, reason = family_of(model_type), refusal_of(model_type)
            hint = f"; {known.title} is built in, so a copy without that key may do" if known else ""
            hint = f"; {reason}" if reason else hint
            raise CheckpointError(f"{folder / file}: auto_map asks to run code of its own; that never runs here{hint}")
    if config.get("quantization_config"):
        raise CheckpointError(f"{folder / 'config.json'}: quantized weights are not supported; use the original model")
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(f"{folder}: holds an adapter (adapter_config.json); merge it into its model first")


def _family(folder: Path, config: Mapping[str, Any]) -> Family:
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise CheckpointError(f"{folder / 'config.json'}: no 'model_type', so the family is unknown")
    family = family_of(model_type)
    if family is None:
        text_config = config.get("text_config")
        reason = refusal_of(model_type, text_config.get("model_type") if isinstance(text_config, dict) else None)
        why = f": {reason}" if reason else ""
        raise CheckpointError(
            f"{folder}: model type {model_type!r:.60} is not supported{why}; `bertfeat models` lists those that are"
        )
    return family


def _check_sizes(folder: Path, family: Family, config: Mapping[str, Any]) -> tuple[int, int, int]:
    path = folder / "config.json"
    n_layers = _size(path, config, family.layers_key, _MAX_LAYERS)
    hidden_size = _size(path, config, family.hidden_key, _MAX_HIDDEN)
    for key, most in _LIMITS.items():
        if config.get(key) is not None:
            _bounded(path, key, config[key], most, least=0 if key == "type_vocab_size" else 1)
    for key, value in config.items():
        if "dropout" in key and isinstance(value, (int, float)) and not 0 <= value <= 1:
            raise CheckpointError(f"{path}: {key} is {value!r:.60}; expected a number from 0 to 1")
    n_ids = _size(path, config, ("vocab_size", "n_words"), _LIMITS["vocab_size"])
    for fault in (family.fault, rope_fault):
        if fault is not None and (reason := fault(config)) is not None:
            raise CheckpointError(f"{path}: {reason}")
    return n_layers, hidden_size, n_ids


def _size(path: Path, config: Mapping[str, Any], keys: tuple[str, ...], most: int) -> int:
    for key in keys:
        if config.get(key) is not None:
            return _bounded(path, key, config[key], most, least=1)
    raise CheckpointError(f"{path}: no {keys[0]!r}")


def _bounded(path: Path, key: str, value: object, most: int, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise CheckpointError(f"{path}: {key} is {value!r:.60}; expected a whole number from {least} to {most}")
    return value


def _max_length(folder: Path, family: Family, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> int:
    path = folder / "config.json"
    if family.positions == "unlimited":
        said = tokenizer_config.get("model_max_length")
        # transformers writes 1e30 where it knows none.
        if isinstance(said, int) and 2 <= said <= _MAX_LENGTH:
            return said
        if not any(config.get(key) is not None for key in family.positions_key):
            return family.window or UNLIMITED_DEFAULT
    positions = _size(path, config, family.positions_key, _LIMITS["max_position_embeddings"])
    if family.positions == "after-padding":
        padding = config.get("pad_token_id", 1)
        positions -= _bounded(path, "pad_token_id", padding, positions - 2, least=0) + 1
    short = rope_length(config)
    return positions if short is None else min(positions, short)


def _tokenizer_files(folder: Path, root: Path, family: Family) -> list[Path]:
    present = [folder / name for name in hub.TOKENIZER_FILES if (folder / name).exists()]
    names = {path.name for path in present}
    if family.slow_tokenizer and "tokenizer.json" not in names:
        raise CheckpointError(
            f"{folder}: no tokenizer.json; the own tokenizer of {family.title} gives no character offsets"
        )
    if not names & _TOKENIZERS and not {"vocab.json", "merges.txt"} <= names:
        raise CheckpointError(
            f"{folder}: no fast tokenizer; it needs tokenizer.json, or vocab.txt, or vocab.json with merges.txt, "
            "or a SentencePiece model"
        )
    for path in present:
        _check_tokenizer_size(path, root)
    return present


def _check_tokenizer_size(path: Path, root: Path) -> None:
    n_bytes = inside(path, root).stat().st_size
    if n_bytes > MAX_TOKENIZER_BYTES:
        raise CheckpointError(f"{path}: {n_bytes} bytes are too many for this file; limit {MAX_TOKENIZER_BYTES}")
