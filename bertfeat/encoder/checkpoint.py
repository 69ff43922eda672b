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
from typing import Any, NamedTuple

from bertfeat.durable.files import os_errors
from bertfeat.encoder import hub
from bertfeat.encoder.entry_points import Facts, find_facts
from bertfeat.encoder.families import STATIC, Family, config_digest, family_of
from bertfeat.encoder.file_digests import named_digest, weights_digest
from bertfeat.encoder.packaged import find_packaged, packaged_hint
from bertfeat.encoder.sentence_files import SAVE_AGAIN, read_prompts, read_sentence_model
from bertfeat.encoder.sentence_model import Prompts, SentenceModel
from bertfeat.encoder.static_vectors import MODEL_TYPE, TokenVectors, open_token_vectors, words_folder
from bertfeat.encoder.weights import MAX_TOKENIZER_BYTES, find_weights, inside, read_json, read_tokenizer_config
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
        n_layers: Blocks; layers are 0 (embeddings) to `n_layers`.
        n_ids: Rows of the embedding matrix in config.json; loading the weights checks it.
        max_length: Tokens that fit a window, special tokens included. This is the model's own limit. The settings of
            sentence-transformers and the tokenizer's `model_max_length` say what a model was tuned on.
        weights_files: The safetensors files, in name order.
        weights_sha256: sha256 (hex) of their bytes in that order.
        tokenizer_sha256: sha256 (hex) over the tokenizer's files.
        n_values: Values in the weight files, unused heads included.
        is_bfloat16: Most of these values are bfloat16.
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


class Place(NamedTuple):
    """Where the files of a model are: their folder, or the file itself if it is one of word vectors, resolved.

    A hub model has a commit, and an installed package the digest that its weights must have.
    """

    folder: Path
    commit: str | None = None
    pinned: str | None = None


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
    if place.folder.is_file():
        # The file itself is known by its bytes, in whatever form it is kept.
        return _static(name, place, words_folder(place.folder))
    config = _read_config(place.folder)
    if config.get("model_type") == MODEL_TYPE:
        _check_tokenizer_size(place.folder, "tokenizer.json")
        return _static(name, place, place.folder)
    return _with_encoder(name, place, config)


@os_errors(CheckpointError)
def locate(name: str, revision: str | None) -> Place:
    """Find a model by its name, as `open_checkpoint` does; a hub model is downloaded.

    Raises:
        CheckpointError: There is no such model, or the hub cannot be reached.
    """
    folder, packaged = Path(name).expanduser(), find_packaged(name)
    if packaged is not None or folder.is_dir() or folder.is_file():
        if revision is not None:
            raise CheckpointError(f"`revision='{revision}'`: model {name!r} is not a hub model; drop `revision`")
        if packaged is not None:
            return Place(packaged.folder.resolve(), pinned=packaged.weights_sha256)
        return Place(folder.resolve())
    if not hub.is_hub_id(name):
        raise CheckpointError(
            f"model {name!r}: no such folder or file, no installed model package ({packaged_hint(name)}), "
            "and not a hub id (owner/model)"
        )
    fetched, commit = hub.fetch(name, revision)
    return Place(fetched.resolve(), commit)


def name_elsewhere(name: str) -> str:
    """Return the name of the model on another machine with the same files: for a folder or file, its absolute path.

    Examples:
        >>> name_elsewhere("minilm")
        'minilm'
    """
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.exists() and find_packaged(name) is None else name


def _read_config(folder: Path) -> dict[str, Any]:
    """Read config.json, and refuse what it and tokenizer_config.json must not ask for."""
    if not os.path.lexists(folder / "config.json"):
        # Folders of old sentence-transformers keep the model one folder deeper.
        remedy = SAVE_AGAIN if (folder / "modules.json").exists() else "is this a model folder?"
        raise CheckpointError(f"no config.json in it; {remedy}", place=folder)
    config = read_json(inside(folder, "config.json"))
    for file, content in (("config.json", config), ("tokenizer_config.json", read_tokenizer_config(folder))):
        if content.get("auto_map"):
            hint = family_of(str(config.get("model_type"))).refusal or "a copy without that key may do"
            raise CheckpointError(
                f"auto_map asks to run code of its own; that never runs here; {hint}", place=folder / file
            )
    if config.get("quantization_config"):
        raise CheckpointError(
            "quantized weights are not supported; use the original model", place=folder / "config.json"
        )
    if (folder / "adapter_config.json").exists():
        raise CheckpointError("holds an adapter (adapter_config.json); merge it into its model first", place=folder)
    return config


def _static(name: str, place: Place, folder: Path) -> Checkpoint:
    """Return the static vectors of a folder of model2vec, or of the folder in the cache that a file was made into."""
    config = read_json(folder / "config.json")
    found = open_token_vectors(folder, config)
    files = (place.folder,) if place.folder.is_file() else (found.file,)
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


def _with_encoder(name: str, place: Place, config: Mapping[str, Any]) -> Checkpoint:
    folder = place.folder
    if not isinstance(model_type := config.get("model_type"), str):
        raise CheckpointError("no 'model_type', so the family is unknown", place=folder / "config.json")
    tokenizer_files = _tokenizer_files(folder)
    files, counts = find_weights(folder, name)
    digest = weights_digest(files)
    if place.pinned not in (None, digest):
        raise CheckpointError(
            f"model package {name!r}: {files[0]} has sha256 {digest}, not {place.pinned}; install the package again"
        )
    _check_numbers(folder / "config.json", config)
    lengths = _original_lengths(folder / "config.json", config)
    family, facts = family_of(model_type), find_facts(folder, config)
    if facts.n_parameters > _MAX_PARAMETERS_PER_VALUE * counts.total():
        raise CheckpointError(
            f"config.json asks for {facts.n_parameters} weights, the files hold {counts.total()}; "
            "they do not belong together",
            place=folder,
        )
    return Checkpoint(
        name=name,
        folder=folder,
        revision=place.commit,
        family=family,
        n_layers=facts.n_layers,
        hidden_size=facts.hidden_size,
        n_ids=facts.n_ids,
        max_length=_max_length(folder, family, facts, lengths),
        weights_files=files,
        weights_sha256=digest,
        tokenizer_sha256=named_digest(tokenizer_files),
        n_values=counts.total(),
        is_bfloat16=counts.most_common(1)[0][0] == "BF16",
        config=config,
        facts=facts,
    )


def _check_numbers(path: Path, value: object, key: str = "") -> None:
    """Refuse numbers that no model has, before lists or tables of that size are made; ids and bases may be large."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(path, inner, name)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(path, inner, key)
    elif isinstance(value, int) and abs(value) > _MAX_NUMBER and not key.endswith(_UNBOUNDED):
        raise CheckpointError(f"{key} is {value!r:.60}; expected at most {_MAX_NUMBER}", place=path)


def _max_length(folder: Path, family: Family, facts: Facts, lengths: list[int]) -> int:
    if facts.n_positions is None:
        said = read_tokenizer_config(folder).get("model_max_length")
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
            kinds = (rope.get("rope_type"), rope.get("type")) if isinstance(rope, dict) else ()
            if "longrope" not in kinds and not (kinds and "short_factor" in rope):
                continue
            found = [value for value in (config.get(name), rope.get(name)) if type(value) is int and value >= 1]
            if not found:
                raise CheckpointError(
                    f"{key} has the type longrope without {name}, a whole number of 1 or more, which is not "
                    "supported: it depends on the length of the text",
                    place=path,
                )
            lengths += found
    return lengths


def _tokenizer_files(folder: Path) -> list[Path]:
    names = [name for name in hub.TOKENIZER_FILES if (folder / name).exists()]
    if not _TOKENIZERS.intersection(names) and not {"vocab.json", "merges.txt"}.issubset(names):
        raise CheckpointError(
            "no fast tokenizer; it needs tokenizer.json, or vocab.txt, or vocab.json with merges.txt, "
            "or a SentencePiece model",
            place=folder,
        )
    for name in names:
        _check_tokenizer_size(folder, name)
    return [folder / name for name in names]


def _check_tokenizer_size(folder: Path, name: str) -> None:
    n_bytes = inside(folder, name).stat().st_size
    if n_bytes > MAX_TOKENIZER_BYTES:
        raise CheckpointError(
            f"{n_bytes} bytes are too many for this file; limit {MAX_TOKENIZER_BYTES}", place=folder / name
        )
