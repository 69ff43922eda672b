"""Finder of the weight files of a model folder, with the checks that come before loading."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from safetensors import safe_open

from bertfeat.display import printable
from bertfeat.errors import CheckpointError, checkpoint_errors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# The pickle files that transformers reads, in this order.
PICKLE = "pytorch_model.bin"
PICKLE_INDEX = "pytorch_model.bin.index.json"

MAX_JSON_BYTES = 16_000_000
# transformers reads a tokenizer's files whole, several times. A vocabulary of half a million takes 64 MB.
MAX_TOKENIZER_BYTES = 64_000_000


def find_weights(folder: Path, name: str) -> tuple[tuple[Path, ...], Counter[str]]:
    """Find and check the safetensors files of a model folder, resolved, of a model that the user gave by this name.

    Returns:
        The files in name order, and how many values of each type, such as `F32` or `BF16`, they hold together.

    Raises:
        CheckpointError: There are pickle files only, or a file is missing, outside of the folder, or damaged.
    """
    if os.path.lexists(folder / SINGLE):
        names = [SINGLE]
    elif os.path.lexists(folder / INDEX):
        names = indexed(inside(folder, INDEX))
    else:
        raise CheckpointError(
            f"no {SINGLE} in it; for pickle weights, run: bertfeat convert {shlex.quote(name)} -o FOLDER", place=folder
        )
    counts: Counter[str] = Counter()
    for file in names:
        for dtype, shape in read_header(inside(folder, file)).values():
            counts[dtype] += math.prod(shape)
    return tuple(folder / file for file in names), counts


def inside(folder: Path, name: str | Path) -> Path:
    """Return the place of a file of a model folder with its links followed.

    Raises:
        CheckpointError: The file is missing, not a regular file, or a link that leads out of the folder.
    """
    path, root = folder / name, folder.resolve()
    if root.parent.name == "snapshots" and (root.parent.parent / "blobs").is_dir():
        # The hub's cache keeps links to the model's own blobs.
        root = root.parent.parent
    shown = Path(printable(str(path)))
    try:
        real = path.resolve(strict=True)
    # ValueError: a name with a null character.
    except (OSError, RuntimeError, ValueError):
        raise CheckpointError("the file is missing; download or copy the model again", place=shown) from None
    if not real.is_relative_to(root):
        raise CheckpointError(f"it leads out of the model folder, to {real}; copy the file itself", place=shown)
    if not real.is_file():
        raise CheckpointError("not a regular file", place=shown)
    return real


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object of limited size.

    Raises:
        CheckpointError: The file is too large, not JSON, or not an object.
    """
    try:
        n_bytes = path.stat().st_size
        if n_bytes > max_bytes:
            raise CheckpointError(f"{n_bytes} bytes are too many for this file; limit {max_bytes}", place=path)
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", place=path) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not valid JSON: {error}", place=path) from None
    if not isinstance(value, dict):
        raise CheckpointError("the JSON is not an object", place=path)
    return value


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Read the tokenizer_config.json of a model, which need not be there; errors are those of `read_json`."""
    name = "tokenizer_config.json"
    return read_json(inside(folder, name)) if os.path.lexists(folder / name) else {}


def indexed(index: Path, ending: str = ".safetensors") -> list[str]:
    """Return the names of the files that an index names, sorted.

    Raises:
        CheckpointError: The file is not an index, or names a file elsewhere or with another ending.
    """
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError("no 'weight_map'; download the model again", place=index)
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(ending):
            raise CheckpointError(f"shard {name!r} is not a {ending} file beside it; refused", place=index)
    return names


def read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of every array in a safetensors file; opening it compares its header with its length.

    Raises:
        CheckpointError: The file is not a whole safetensors file.
    """
    with (
        checkpoint_errors(path, "not a whole safetensors file", "download or copy the model again"),
        safe_open(path, framework="np") as file,
    ):
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: (found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()}
