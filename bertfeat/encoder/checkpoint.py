"""Finder of models: finds a model by its name and checks its files before anything is loaded.

`open_checkpoint` runs nothing from the model's folder: it reads JSON and the headers of safetensors files. It imports
torch and transformers only for a config that it sees for the first time.
`bertfeat.encoder.loading.load_encoder` then loads what is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfeat.encoder import hub
from bertfeat.encoder.discovery import Facts, find_facts
from bertfeat.encoder.families import STATIC, Family, family_of
from bertfeat.encoder.filedigests import named_digest, weights_digest
from bertfeat.encoder.modelconfig import config_digest
from bertfeat.encoder.modelplaces import Place, locate
from bertfeat.encoder.sentencefiles import SAVE_AGAIN, read_prompts, read_sentence_model
from bertfeat.encoder.sentencemodel import Prompts, SentenceModel
from bertfeat.encoder.staticvectors import MODEL_TYPE, TokenVectors, open_token_vectors, words_folder
from bertfeat.encoder.weights import (
    MAX_TOKENIZER_BYTES,
    find_weights,
    inside,
    read_json,
    read_tokenizer_config,
)
from bertfeat.errors import CheckpointError
from bertfeat.records import ModelInfo

# Files that hold a whole tokenizer: the fast one, or what transformers turns into one without pickle.
_TOKENIZERS = {"tokenizer.json", "vocab.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model"}
# Numbers in config.json that count something are smaller.
_MAX_NUMBER = 1 << 24
_UNBOUNDED = ("_id", "_ids", "theta", "seed")
_MAX_LENGTH = 1_000_000
# Tied and unused weights make the two counts differ; more than twice as many belong to another model.
_MAX_PARAMETERS_PER_VALUE = 2
# Static vectors know no context, so that a window only limits the memory of a long document.
STATIC_WINDOW = 65_536


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that was found and checked; no weight is loaded.

    Attributes:
        name: The name that the user gave.
        folder: The folder of its files, resolved; the file itself if it is one of word vectors.
        revision: The commit of a hub model, else None.
        family: Its model type, and what the table of families says of it.
        n_layers: Blocks; layers are 0 (embeddings) to `n_layers`.
        hidden_size: Width of every layer.
        n_ids: Rows of the embedding matrix in config.json; loading the weights checks it.
        max_length: Tokens that fit a window, special tokens included. This is the model's own limit. The settings of
            sentence-transformers and the tokenizer's `model_max_length` say what a model was tuned on.
        weights_files: The safetensors files, in name order.
        weights_sha256: sha256 (hex) of their bytes in that order.
        tokenizer_sha256: sha256 (hex) over the tokenizer's files.
        n_values: Values in the weight files, unused heads included.
        is_bfloat16: Most of these values are bfloat16.
        config: The content of config.json.
        facts: What transformers tells of it; None without an encoder.
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
    n_values: int
    is_bfloat16: bool
    config: Mapping[str, Any] = field(repr=False)
    facts: Facts | None = None
    static: TokenVectors | None = None

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
            return self.static.sentence_model()
        return read_sentence_model(self.folder, self.hidden_size)

    def prompts(self) -> Prompts:
        """Read the model's prompts.

        Raises:
            CheckpointError: Their file is unsafe or malformed.
        """
        return read_prompts(self.folder)


def open_checkpoint(name: str, revision: str | None = None) -> Checkpoint:
    """Find a model and check its files.

    A name that begins with `.`, `/` or `~` is a folder or a file of word vectors. Any other is looked up as an
    installed model package, then as a folder or file, then on the hub.

    Args:
        name: The name of an installed model package (`minilm`), a folder, a file of word vectors, or a hub id
            (`owner/model`).
        revision: Branch, tag or commit of a hub model.

    Raises:
        CheckpointError: The model does not exist, or is incomplete, unsafe, or of a family that is not supported.

    Examples:
        >>> checkpoint = open_checkpoint("minilm")
        >>> checkpoint.family.model_type, checkpoint.n_layers, checkpoint.hidden_size, checkpoint.max_length
        ('bert', 6, 384, 512)
    """
    place = locate(name, revision)
    config, tokenizer_config = ({}, {}) if place.folder.is_file() else _read_configs(place.folder)
    if place.folder.is_file() or config.get("model_type") == MODEL_TYPE:
        return _static(name, place, config)
    return _with_encoder(name, place, config, tokenizer_config)


def _read_configs(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read config.json and tokenizer_config.json, which need not be there; refuse what they must not ask for."""
    if not os.path.lexists(folder / "config.json"):
        # Folders of old sentence-transformers keep the model one folder deeper.
        remedy = SAVE_AGAIN if (folder / "modules.json").exists() else "is this a model folder?"
        raise CheckpointError(f"{folder}: no config.json in it; {remedy}")
    config, tokenizer_config = read_json(inside(folder, "config.json")), read_tokenizer_config(folder)
    _refuse_code(folder, config, tokenizer_config)
    return config, tokenizer_config


def _static(name: str, place: Place, config: Mapping[str, Any]) -> Checkpoint:
    """Return static vectors: those of a file, by its folder in the cache, or those of a folder of model2vec."""
    folder = place.folder
    is_file = place.folder.is_file()
    if is_file:
        folder = words_folder(place.folder)
        config = read_json(folder / "config.json")
    else:
        _check_tokenizer_size(folder, "tokenizer.json")
    found = open_token_vectors(folder, config)
    # The file itself is known by its bytes, in whatever form it is kept.
    files = (place.folder,) if is_file else (found.file,)
    return Checkpoint(
        name=name,
        folder=place.folder,
        revision=place.commit,
        family=STATIC,
        n_layers=0,
        hidden_size=found.dim,
        n_ids=found.n_ids,
        max_length=STATIC_WINDOW,
        weights_files=files,
        weights_sha256=weights_digest(files),
        tokenizer_sha256=found.tokenizer_sha256,
        n_values=found.n_values,
        is_bfloat16=False,
        config=config,
        static=found,
    )


def _with_encoder(
    name: str, place: Place, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
) -> Checkpoint:
    folder = place.folder
    if not isinstance(model_type := config.get("model_type"), str):
        raise CheckpointError(f"{folder / 'config.json'}: no 'model_type', so the family is unknown")
    tokenizer_files = _tokenizer_files(folder)
    weights = find_weights(folder, name if place.commit else None)
    digest = weights_digest(weights.files)
    if place.pinned not in (None, digest):
        raise CheckpointError(
            f"model package {name!r}: {weights.files[0]} has sha256 {digest}, not {place.pinned}; "
            "install the package again"
        )
    _check_numbers(folder / "config.json", config)
    lengths = _original_lengths(folder / "config.json", config)
    family, facts = family_of(model_type), find_facts(folder, config)
    if facts.n_parameters > _MAX_PARAMETERS_PER_VALUE * weights.n_values:
        raise CheckpointError(
            f"{folder}: config.json asks for {facts.n_parameters} weights, the files hold {weights.n_values}; "
            "they do not belong together"
        )
    return Checkpoint(
        name=name,
        folder=folder,
        revision=place.commit,
        family=family,
        n_layers=facts.n_layers,
        hidden_size=facts.hidden_size,
        n_ids=facts.n_ids,
        max_length=_max_length(family, facts, lengths, tokenizer_config),
        weights_files=weights.files,
        weights_sha256=digest,
        tokenizer_sha256=named_digest(tokenizer_files),
        n_values=weights.n_values,
        is_bfloat16=weights.dtype == "BF16",
        config=config,
        facts=facts,
    )


def _refuse_code(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> None:
    for file, content in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        if content.get("auto_map"):
            hint = family_of(str(config.get("model_type"))).refusal or "a copy without that key may do"
            raise CheckpointError(
                f"{folder / file}: auto_map asks to run code of its own; that never runs here; {hint}"
            )
    if config.get("quantization_config"):
        raise CheckpointError(f"{folder / 'config.json'}: quantized weights are not supported; use the original model")
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(f"{folder}: holds an adapter (adapter_config.json); merge it into its model first")


def _check_numbers(path: Path, value: object, key: str = "") -> None:
    """Refuse numbers that no model has, before lists or tables of that size are made; ids and bases may be large."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(path, inner, name)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(path, inner, key)
    elif isinstance(value, int) and abs(value) > _MAX_NUMBER and not key.endswith(_UNBOUNDED):
        raise CheckpointError(f"{path}: {key} is {value!r:.60}; expected at most {_MAX_NUMBER}")


def _max_length(family: Family, facts: Facts, lengths: list[int], tokenizer_config: Mapping[str, Any]) -> int:
    if facts.n_positions is None:
        said = tokenizer_config.get("model_max_length")
        # transformers writes 1e30 where it knows none.
        return said if isinstance(said, int) and 2 <= said <= _MAX_LENGTH else family.unlimited
    return min([facts.n_positions, *lengths])


def _original_lengths(path: Path, config: Mapping[str, Any]) -> list[int]:
    """Return the tokens up to which the frequencies of a model stay the same; nothing where they always do.

    With the type longrope, which older configs of Phi-3 call su or yarn, transformers sets them by the longest text of
    a batch, in a place that threads share: up to this length, all texts have the short ones.
    """
    name, lengths = "original_max_position_embeddings", list[int]()
    for key in ("rope_parameters", "rope_scaling"):
        values = config.get(key)
        for rope in (values, *values.values()) if isinstance(values, dict) else ():
            if not isinstance(rope, dict):
                continue
            if "longrope" not in (rope.get("rope_type"), rope.get("type")) and "short_factor" not in rope:
                continue
            found = [value for value in (config.get(name), rope.get(name)) if value is not None]
            if not found:
                raise CheckpointError(
                    f"{path}: {key} has the type longrope without {name}, which is not supported: it depends on the "
                    "length of the text"
                )
            lengths += found
    for length in lengths:
        if type(length) is not int or length < 1:
            raise CheckpointError(f"{path}: {name} is {length!r:.60}; expected a whole number of 1 or more")
    return lengths


def _tokenizer_files(folder: Path) -> list[Path]:
    names = [name for name in hub.TOKENIZER_FILES if (folder / name).exists()]
    if not _TOKENIZERS.intersection(names) and not {"vocab.json", "merges.txt"}.issubset(names):
        raise CheckpointError(
            f"{folder}: no fast tokenizer; it needs tokenizer.json, or vocab.txt, or vocab.json with merges.txt, "
            "or a SentencePiece model"
        )
    for name in names:
        _check_tokenizer_size(folder, name)
    return [folder / name for name in names]


def _check_tokenizer_size(folder: Path, name: str) -> None:
    n_bytes = inside(folder, name).stat().st_size
    if n_bytes > MAX_TOKENIZER_BYTES:
        raise CheckpointError(
            f"{folder / name}: {n_bytes} bytes are too many for this file; limit {MAX_TOKENIZER_BYTES}"
        )
