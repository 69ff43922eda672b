"""Finder of the weight files of a model folder, with the checks that come before loading."""

from __future__ import annotations

import json
import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from bertfeat.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

MAX_JSON_BYTES = 16_000_000
_PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The checked weight files of a folder, in name order, and how many values they hold together."""

    files: tuple[Path, ...]
    n_values: int


def find_weights(folder: Path, root: Path) -> WeightFiles:
    """Find and check the safetensors files of a model folder.

    Args:
        folder: The model folder, resolved.
        root: The folder that every file must lie in once links are followed.

    Raises:
        CheckpointError: A file is missing, outside of `root`, or not a whole safetensors file.
    """
    if (folder / SINGLE).exists() or (folder / SINGLE).is_symlink():
        names = [SINGLE]
    elif (folder / INDEX).exists():
        names = _indexed(inside(folder / INDEX, root))
    else:
        raise _no_weights(folder)
    files = tuple(inside(folder / name, root) for name in names)
    return WeightFiles(tuple(folder / name for name in names), sum(_n_values(file) for file in files))


def inside(path: Path, root: Path) -> Path:
    """Return the place of a file with its links followed.

    Raises:
        CheckpointError: The file is missing, not a regular file, or a link that leads out of `root`.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise CheckpointError(f"{path}: the file is missing; download or copy the model again") from None
    if not real.is_relative_to(root):
        raise CheckpointError(f"{path}: a link that leads out of the model folder, to {real}; copy the file itself")
    if not stat.S_ISREG(real.stat().st_mode):
        raise CheckpointError(f"{path}: not a regular file")
    return real


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of limited size, refusing repeated keys.

    Raises:
        CheckpointError: The file is too large, not JSON, or not an object.
    """
    try:
        n_bytes = path.stat().st_size
        if n_bytes > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: {n_bytes} bytes are too many for this file; limit {MAX_JSON_BYTES}")
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: the JSON is not an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return value


def _indexed(index: Path) -> list[str]:
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index}: no 'weight_map'; download the model again")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if Path(name).name != name or "\\" in name or name in (".", ".."):
            raise CheckpointError(f"{index}: shard {name!r} lies outside the model folder; refused")
        if not name.endswith(".safetensors"):
            raise CheckpointError(f"{index}: shard {name!r} is not .safetensors; weights load from safetensors only")
    return names


def _no_weights(folder: Path) -> CheckpointError:
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(_PICKLE_ENDINGS))
    if not pickles:
        return CheckpointError(f"{folder}: no {SINGLE} in it; is this a model folder?")
    return CheckpointError(
        f"{folder}: weights in pickle files only ({', '.join(pickles[:3])}), which can run code when they are opened; "
        'convert them on a machine you can afford to lose: python -c "from transformers import AutoModel; '
        "AutoModel.from_pretrained('FOLDER', weights_only=True).save_pretrained('CONVERTED')\", "
        "then copy the tokenizer files beside"
    )


def _n_values(path: Path) -> int:
    """Return the number of values in a safetensors file; opening it compares its header with its length."""
    try:
        with safe_open(path, framework="np") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        why = " ".join(str(error).split())
        raise CheckpointError(
            f"{path}: not a whole safetensors file ({why}); download or copy the model again"
        ) from None
