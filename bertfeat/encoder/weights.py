"""The weight files of a model folder, checked before anything loads them.

A safetensors file is 8 bytes (the header's length, little-endian), the header (JSON: each tensor's type, shape and
bytes) and the tensors. What is checked here is the format's own specification: the header fits the file, and the
tensors fill the rest exactly, without gap or overlap, each as long as its shape and type say.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from bertfeat.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# The format allows 100 MB, but a tensor takes some 130 bytes of it, and parsing may take 30 times the size.
MAX_HEADER_BYTES = 16_000_000
MAX_JSON_BYTES = 16_000_000
_PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


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
        CheckpointError: There are none, one is missing, lies elsewhere, or is no whole safetensors file.
    """
    if (folder / SINGLE).exists() or (folder / SINGLE).is_symlink():
        names = [SINGLE]
    elif (folder / INDEX).exists():
        names = _indexed(inside(folder / INDEX, root))
    else:
        raise CheckpointError(_no_weights(folder))
    files = tuple(inside(folder / name, root) for name in names)
    return WeightFiles(tuple(folder / name for name in names), sum(_n_values(file) for file in files))


def inside(path: Path, root: Path) -> Path:
    """Return where a file of the folder really lies.

    Raises:
        CheckpointError: It is missing, no regular file, or a link that leads out of `root`.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise CheckpointError(f"{path}: the file is missing; download or copy the model again") from None
    if not real.is_relative_to(root):
        raise CheckpointError(f"{path}: a link that leads out of the model folder, to {real}; copy the file itself")
    if not stat.S_ISREG(real.stat().st_mode):
        raise CheckpointError(f"{path}: no regular file")
    return real


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of limited size, refusing repeated keys.

    Raises:
        CheckpointError: The file is too large, no JSON, or no object.
    """
    try:
        n_bytes = path.stat().st_size
        if n_bytes > MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: {n_bytes} bytes are too many for this file; limit {MAX_JSON_BYTES}")
        return _object(path, path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None


def _object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: no valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: the JSON is no object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
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
            raise CheckpointError(
                f"{index}: shard {name!r} is no .safetensors file; weights load from safetensors only"
            )
    return names


def _no_weights(folder: Path) -> str:
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(_PICKLE_ENDINGS))
    if not pickles:
        return f"{folder}: no {SINGLE} in it; is this a model folder?"
    return (
        f"{folder}: weights in pickle files only ({', '.join(pickles[:3])}), which can run code when they are opened; "
        'convert them on a machine you can afford to lose: python -c "from transformers import AutoModel; '
        "AutoModel.from_pretrained('FOLDER', weights_only=True).save_pretrained('CONVERTED')\", "
        "then copy the tokenizer files beside"
    )


def _n_values(path: Path) -> int:
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if n_bytes < 8 or length > min(MAX_HEADER_BYTES, n_bytes - 8):
            raise CheckpointError(f"{path}: no whole safetensors file (header of {length} bytes in {n_bytes})")
        header = _object(path, file.read(length))
    header.pop("__metadata__", None)
    spans = sorted(_span(path, name, entry) for name, entry in header.items())
    end = 0
    for start, stop, _, name in spans:
        if start != end:
            raise CheckpointError(f"{path}: tensor {name!r} starts at byte {start}, not at {end}; the file is damaged")
        end = stop
    if end != n_bytes - 8 - length:
        raise CheckpointError(f"{path}: tensors end at byte {end} of {n_bytes - 8 - length}; the file is damaged")
    return sum(n_values for _, _, n_values, _ in spans)


def _span(path: Path, name: str, entry: Any) -> tuple[int, int, int, str]:
    """Return (first byte, end, values, name) of a tensor, once they agree."""
    if not isinstance(entry, Mapping):
        raise CheckpointError(f"{path}: tensor {name!r} has a malformed header entry")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if (
        not isinstance(dtype, str)
        or dtype not in _BYTES
        or not _is_counts(shape)
        or not _is_counts(offsets)
        or len(offsets) != 2
    ):
        raise CheckpointError(
            f"{path}: tensor {name!r} has a malformed header entry (dtype {dtype!r}, shape {shape!r})"
        )
    n_values = math.prod(shape)
    if offsets[1] - offsets[0] != n_values * _BYTES[dtype]:
        raise CheckpointError(f"{path}: tensor {name!r} of shape {shape} does not fill bytes {offsets}")
    return offsets[0], offsets[1], n_values, name


def _is_counts(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= 16
        and all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**63 for item in value)
    )
