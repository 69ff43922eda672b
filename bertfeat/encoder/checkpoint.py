"""Find a model by its name and check it before anything of it is loaded.

`open_checkpoint` imports neither torch nor transformers and runs nothing from the model's folder: it reads JSON and
the headers of safetensors files. `bertfeat.encoder.loading.load_encoder` then loads what is needed of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfeat.durable.files import os_errors
from bertfeat.encoder import hub
from bertfeat.encoder.families import Family, family_of, refused_families
from bertfeat.encoder.filedigests import named_digest, weights_digest
from bertfeat.encoder.packaged import find_packaged, packaged_names
from bertfeat.encoder.weights import find_weights, inside, read_json
from bertfeat.errors import CheckpointError
from bertfeat.records import ModelInfo

# What a model of unlimited relative positions is given where its tokenizer names no sane length either.
UNLIMITED_DEFAULT = 512

_FAST_TOKENIZER = "tokenizer.json"
# The fast tokenizer, or what transformers turns into one itself, without pickle.
_TOKENIZERS = (
    (_FAST_TOKENIZER,),
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("spiece.model",),
    ("spm.model",),
    ("sentencepiece.bpe.model",),
)
_TOKENIZER_FILES = (
    "added_tokens.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_LIMITS = {
    "vocab_size": 10_000_000,
    "max_position_embeddings": 10_000_000,
    "n_positions": 10_000_000,
    "intermediate_size": 1_000_000,
    "type_vocab_size": 100_000,
    "num_attention_heads": 65_536,
    "embedding_size": 65_536,
    "num_hidden_groups": 1_000,
    "inner_group_num": 1,
    "num_feedforward_networks": 1_000,
    "num_labels": 1_000_000,
}
_MAX_LAYERS = 1_000
_MAX_HIDDEN = 65_536
_MAX_LENGTH = 1_000_000
# Read whole by transformers, several times; 64 MB are a vocabulary of half a million.
_MAX_TOKENIZER_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that was found and checked; no weight is loaded.

    Attributes:
        name: What the user called it.
        folder: Where its files lie, resolved.
        revision: The commit of a hub model, else None.
        family: How it is loaded and run.
        n_layers: Blocks; layers are 0 (embeddings) to `n_layers`.
        hidden_size: Width of every layer.
        n_ids: Rows of the embedding matrix, as config.json says; loading the weights checks it.
        max_length: Tokens that fit a window, special tokens included. The model's own limit counts, never a
            sentence-transformers setting nor, where the model has a limit, the tokenizer's `model_max_length`: both
            say what a model was tuned on, not what it takes.
        weights_files: The safetensors files, in name order.
        weights_sha256: sha256 (hex) of their bytes in that order.
        tokenizer_sha256: sha256 (hex) over the tokenizer's files.
        n_values: Values in the weight files, unused heads included.
        config: config.json as it stands.
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
    config: Mapping[str, Any] = field(repr=False)

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


def open_checkpoint(name: str, revision: str | None = None) -> Checkpoint:
    """Find a model and check its files.

    A name that begins with `.`, `/` or `~` is a folder. Any other is looked up as an installed model package, then as
    a folder, then on the hub.

    Args:
        name: The name of an installed model package (`minilm`), a folder, or a hub id (`owner/model`).
        revision: Branch, tag or commit of a hub model.

    Raises:
        CheckpointError: There is no such model, or it is incomplete, unsafe, or of a family that is not supported.

    Example:
        >>> checkpoint = open_checkpoint("minilm")
        >>> checkpoint.family.model_type, checkpoint.n_layers, checkpoint.hidden_size, checkpoint.max_length
        ('bert', 6, 384, 512)
    """
    folder, commit, pinned = _locate(name, revision)
    root = _root(folder)
    config = read_json(_must_have(folder, "config.json", root))
    tokenizer_config = _tokenizer_config(folder, root)
    _refuse_code(folder, config, tokenizer_config)
    family = _family(folder, config)
    n_layers, hidden_size, n_ids = _check_sizes(folder, family, config)
    tokenizer_files = _tokenizer_files(folder, root)
    weights = find_weights(folder, root)
    digest = weights_digest(weights.files)
    if pinned is not None and digest != pinned:
        raise CheckpointError(
            f"model package {name!r}: {weights.files[0]} has sha256 {digest}, not {pinned}; install the package again"
        )
    return Checkpoint(
        name=name,
        folder=folder,
        revision=commit,
        family=family,
        n_layers=n_layers,
        hidden_size=hidden_size,
        n_ids=n_ids,
        max_length=_max_length(folder, family, config, tokenizer_config),
        weights_files=weights.files,
        weights_sha256=digest,
        tokenizer_sha256=named_digest(tokenizer_files),
        n_values=weights.n_values,
        config=config,
    )


@os_errors(CheckpointError)
def _locate(name: str, revision: str | None) -> tuple[Path, str | None, str | None]:
    """Return the folder, the commit (hub) and the pinned digest (package)."""
    is_path = name.startswith((".", "/", "~"))
    packaged = None if is_path else find_packaged(name)
    if packaged is not None:
        _no_revision(name, revision)
        return packaged.folder.resolve(), None, packaged.weights_sha256
    folder = Path(name).expanduser()
    if folder.is_dir():
        _no_revision(name, revision)
        return folder.resolve(), None, None
    if is_path or not hub.is_hub_id(name):
        what = "a file, not a model folder" if folder.exists() else "no such folder"
        raise CheckpointError(
            f"model {name!r}: {what}, no installed model package (there is {', '.join(packaged_names())}), "
            "and no hub id (owner/model)"
        )
    fetched, commit = hub.fetch(name, revision)
    return fetched.resolve(), commit, None


def name_elsewhere(name: str) -> str:
    """Return a name that stands for the same model on a machine with the same files: a folder's absolute path.

    Example:
        >>> name_elsewhere("minilm")
        'minilm'
    """
    folder = Path(name).expanduser()
    is_folder = folder.is_dir() and (name.startswith((".", "/", "~")) or find_packaged(name) is None)
    return str(folder.resolve()) if is_folder else name


def _no_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise CheckpointError(f"--revision {revision}: model {name!r} is no hub model; drop --revision")


def _root(folder: Path) -> Path:
    """Return the folder that files may lie in: the hub's cache keeps them as links to the model's own blobs."""
    if folder.parent.name == "snapshots" and (folder.parent.parent / "blobs").is_dir():
        return folder.parent.parent
    return folder


def _must_have(folder: Path, name: str, root: Path) -> Path:
    if not (folder / name).exists() and not (folder / name).is_symlink():
        raise CheckpointError(f"{folder}: no {name} in it; is this a model folder?")
    return inside(folder / name, root)


def _tokenizer_config(folder: Path, root: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(inside(path, root)) if path.exists() or path.is_symlink() else {}


def _refuse_code(folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> None:
    for file, content in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        if content.get("auto_map"):
            known = family_of(str(config.get("model_type")))
            hint = f"; {known.title} is built in, so a copy without that key may do" if known else ""
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
        reason = refused_families().get(model_type)
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
    return n_layers, hidden_size, _size(path, config, ("vocab_size",), _LIMITS["vocab_size"])


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
        return said if isinstance(said, int) and 2 <= said <= _MAX_LENGTH else UNLIMITED_DEFAULT
    positions = _size(path, config, family.positions_key, _LIMITS["max_position_embeddings"])
    if family.positions == "after-padding":
        padding = config.get("pad_token_id", 1)
        positions -= _bounded(path, "pad_token_id", padding, positions - 2, least=0) + 1
    return positions


def _tokenizer_files(folder: Path, root: Path) -> list[Path]:
    if not any(all((folder / name).exists() for name in names) for names in _TOKENIZERS):
        raise CheckpointError(
            f"{folder}: no fast tokenizer; it needs {_FAST_TOKENIZER}, or vocab.txt, or vocab.json with merges.txt, "
            "or a SentencePiece model"
        )
    present = [folder / name for name in _TOKENIZER_FILES if (folder / name).exists()]
    for path in present:
        n_bytes = inside(path, root).stat().st_size
        if n_bytes > _MAX_TOKENIZER_BYTES:
            raise CheckpointError(f"{path}: {n_bytes} bytes are too many for this file; limit {_MAX_TOKENIZER_BYTES}")
    return present
