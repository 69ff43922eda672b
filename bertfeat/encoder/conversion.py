"""Conversion of a model with pickle files into a folder of safetensors that is a plain model."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from bertfeat._version import __version__
from bertfeat.display import printable
from bertfeat.durable.files import os_errors, sync_path
from bertfeat.durable.output_check import listed
from bertfeat.durable.publication import OutputFolder
from bertfeat.durable.records import decode, encode
from bertfeat.encoder import hub
from bertfeat.encoder.checkpoint import Place, locate, open_checkpoint
from bertfeat.encoder.file_digests import weights_digest
from bertfeat.encoder.weights import INDEX, PICKLE, PICKLE_INDEX, SINGLE, indexed, inside
from bertfeat.errors import CheckpointError, UserError, checkpoint_errors

if TYPE_CHECKING:
    from torch import Tensor

NOTE = "conversion.json"
_FOLDER = OutputFolder("a conversion", (NOTE,))
# Beyond this size, only the first block is loaded to check what was written.
_MAX_LOADED_BYTES = 4_000_000_000
_MAX_REASON = 300
# Tied weights are in a file once, and are written under each of their names. No model has as many as this.
_MAX_GROWTH = 16


@dataclass(frozen=True, slots=True)
class Conversion:
    """A folder of safetensors made from pickle files, as its conversion.json says.

    Attributes:
        source: The model that was converted, as the user named it.
        revision: Its commit on the hub, else None.
        pickles: The sha256 (hex) of each pickle file, by its name.
        files: The sha256 (hex) of each file that was written, by its name.
        left_out: The names of what the pickle files held besides tensors.
        weights_sha256: sha256 (hex) of the folder's weights, as in `inspect` and in plans.
        versions: The versions of bertfeat, torch and safetensors that wrote the folder.
    """

    source: str
    revision: str | None
    pickles: Mapping[str, str]
    files: Mapping[str, str]
    left_out: tuple[str, ...]
    n_tensors: int
    n_bytes: int
    weights_sha256: str
    versions: Mapping[str, str]


@os_errors(CheckpointError)
def convert(model: str, output: str | Path, *, revision: str | None = None) -> Conversion:
    """Convert a model whose weights are in pickle files into a folder of safetensors.

    The pickle files are read with `torch.load(weights_only=True)`, which makes tensors and runs no code. A folder that
    holds the same conversion already is left as it is.

    Args:
        model: A folder, or a hub id, whose pickle files are then downloaded.
        output: The new folder.
        revision: Branch, tag or commit of a hub model.

    Raises:
        CheckpointError: The model cannot be used, has no pickle files, or they are damaged or hostile.
        UserError: The output folder holds something else.
        RunError: The folder cannot be written.

    Examples:
        >>> convert("minilm", "converted")
        Traceback (most recent call last):
        ...
        bertfeat.errors.CheckpointError: model minilm: its weights need no conversion; use it as it is
    """
    target = Path(output).expanduser()
    stored = None if target.is_symlink() else read_note(target)
    if stored is None:
        _FOLDER.check(target, overwrite=False)
    place = locate(model, revision)
    folder, names = place.folder, _pickles(model, place)
    pickles = _digests(folder, names)
    if stored is not None:
        if (stored.revision, stored.pickles, stored.files) != (place.commit, pickles, _written(target)):
            raise UserError(
                f"{target}: holds the conversion of {stored.source!r:.100}, of other files or changed since; remove "
                "the folder, or choose another `output`"
            )
        return stored
    with _FOLDER.publish(target, overwrite=False) as new:
        sizes, left_out = _write(folder, names, new)
        if pickles != _digests(folder, names):
            raise CheckpointError(f"{folder}: its pickle files changed while they were read; run it again")
        made = Conversion(
            source=model,
            revision=place.commit,
            pickles=pickles,
            files=_written(new),
            left_out=tuple(left_out),
            n_tensors=len(sizes),
            n_bytes=sum(sizes),
            weights_sha256=_checked(new, folder),
            versions={"bertfeat": __version__, "torch": version("torch"), "safetensors": version("safetensors")},
        )
        (new / NOTE).write_bytes(encode(made) + b"\n")
        # Those above them are synced when the folder is published.
        for file in new.glob("*/*"):
            sync_path(file)
    return made


def read_note(folder: Path) -> Conversion | None:
    """Return what a folder says of its conversion, or None.

    Raises:
        CheckpointError: The note is malformed.
    """
    path = folder / NOTE
    if not os.path.lexists(path):
        return None
    try:
        return decode(Conversion, inside(folder, NOTE).read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{path}: not a note of `bertfeat convert` ({error}); remove it") from None


def _pickles(model: str, place: Place) -> list[str]:
    """Return the names of a model's pickle files, which are downloaded."""
    folder = place.folder
    # Files of safetensors without their index are not the model's weights.
    of_encoder = folder.is_dir() and not any(os.path.lexists(folder / weights) for weights in (SINGLE, INDEX))
    if place.commit is not None:
        hub.fetch(model, place.commit, hub.PICKLES if of_encoder else hub.DENSE_PICKLES)
    # Dense layers of sentence-transformers.
    dense = sorted(path.parent for path in folder.glob(f"*_Dense/{PICKLE}"))
    names = [f"{layer.name}/{PICKLE}" for layer in dense if not os.path.lexists(layer / SINGLE)]
    if of_encoder and os.path.lexists(folder / PICKLE):
        names.insert(0, PICKLE)
    elif of_encoder and os.path.lexists(folder / PICKLE_INDEX):
        names += indexed(inside(folder, PICKLE_INDEX), ".bin")
    elif of_encoder:
        raise CheckpointError(f"{folder}: no {SINGLE} and no {PICKLE} in it; is this a model folder?")
    if not names:
        raise CheckpointError(f"model {model}: its weights need no conversion; use it as it is")
    return names


def _write(folder: Path, pickles: list[str], new: Path) -> tuple[list[int], list[str]]:
    """Write the weights, then copy the other files; return the bytes of each tensor and the names of other values."""
    from safetensors.torch import save_file

    left_out: list[str] = []
    shards: dict[str, str] = {}
    sizes: list[int] = []
    for name in pickles:
        made = name.replace(PICKLE.removesuffix(".bin"), "model").removesuffix(".bin") + ".safetensors"
        tensors, others = _read(folder, name)
        (new / made).parent.mkdir(exist_ok=True)
        with checkpoint_errors(folder / name, "its tensors cannot be saved as safetensors"):
            save_file(tensors, new / made, metadata={"format": "pt"})
        left_out += others
        sizes += [tensor.nbytes for tensor in tensors.values()]
        if "/" not in name:
            shards |= dict.fromkeys(tensors, made)
    if shards and not (new / SINGLE).exists():
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": shards}
        (new / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name in hub.wanted_files(folder, weights=not shards):
        (new / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(inside(folder, name), new / name)
    return sizes, left_out


def _read(folder: Path, name: str) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of a pickle file by name, each contiguous and in memory of its own, and the other names."""
    import torch

    file = inside(folder, name)
    try:
        # Files from before torch 1.6 are not zip files, and cannot be mapped.
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        if not isinstance(loaded, dict):
            raise TypeError(f"it holds a {type(loaded).__name__}")
        found = {key: value.detach() for key, value in loaded.items() if isinstance(value, torch.Tensor)}
        # A view may repeat its values, or be one of many.
        n_bytes, n_in_file = sum(tensor.nbytes for tensor in found.values()), file.stat().st_size
        if n_bytes > _MAX_GROWTH * n_in_file:
            raise ValueError(f"{n_bytes} bytes of tensors from {n_in_file} in the file; limit {_MAX_GROWTH} times that")
        seen: set[int] = set()
        for key, tensor in found.items():
            # safetensors knows no shared tensors: each of them is written.
            start = tensor.untyped_storage().data_ptr()
            found[key] = tensor.clone(memory_format=torch.contiguous_format) if start in seen else tensor.contiguous()
            seen.add(start)
    except Exception as error:
        raise CheckpointError(f"{folder / name}: {printable(_reason(error))}") from None
    others = [str(key) for key in loaded if key not in found]
    if not found:
        held = printable(listed(others))[:_MAX_REASON] or "nothing"
        raise CheckpointError(f"{folder / name}: no tensors by name in it, but {held}")
    return found, others


def _reason(error: Exception) -> str:
    """Return what torch says, without its advice to run the code of the file."""
    said = " ".join(str(error).split())
    if found := re.search(r"GLOBAL (\S+)", said):
        return f"asks for {found[1]:.100}, which no tensor needs; it was not run"
    said = said.rpartition("WeightsUnpickler error: ")[2].partition(" Check the documentation")[0]
    return f"cannot be read as tensors: {said[:_MAX_REASON] or type(error).__name__}"


def _checked(new: Path, folder: Path) -> str:
    """Load what was written, and return the digest of its weights."""
    from bertfeat.encoder.loading import load_encoder

    try:
        checkpoint = open_checkpoint(str(new))
        n_bytes = sum(file.stat().st_size for file in checkpoint.weights_files)
        load_encoder(checkpoint, [checkpoint.n_layers if n_bytes <= _MAX_LOADED_BYTES else 1])
    except CheckpointError as error:
        # The file in `new`, which is deleted, has the name of the one in `folder`.
        file = "" if error.place in (None, new.resolve()) else f"{error.place.name}: "
        raise CheckpointError(f"after conversion, {file}{error.reason}", place=folder) from None
    return checkpoint.weights_sha256


def _digests(folder: Path, names: list[str]) -> dict[str, str]:
    return {name: weights_digest([inside(folder, name)]) for name in names}


def _written(folder: Path) -> dict[str, str]:
    """Return the digest of every file but the note, by its name."""
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
    return _digests(folder, [name for name in sorted(files) if name != NOTE])
