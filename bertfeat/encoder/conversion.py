"""Conversion of a model with pickle files into a folder of safetensors that is a plain model."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertfeat._version import __version__
from bertfeat.durable.files import kind_of, os_errors, sync_file, sync_folder
from bertfeat.durable.placecheck import check_parents, listed
from bertfeat.durable.publication import publish_folder
from bertfeat.encoder import hub
from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.encoder.filedigests import weights_digest
from bertfeat.encoder.modelplaces import model_root
from bertfeat.encoder.pickleprocess import Limits, Written, read_pickles
from bertfeat.encoder.sentencesettings import MAX_TOKENIZER_BYTES
from bertfeat.encoder.weights import (
    INDEX,
    PICKLE,
    PICKLE_INDEX,
    SINGLE,
    PickleOnly,
    indexed,
    inside,
    read_header,
    read_json,
)
from bertfeat.errors import CheckpointError, UserError

NOTE = "conversion.json"
# What the process that reads pickle files may use.
LIMITS = Limits()
# Beyond this size, only the first block is loaded to check what was written.
_MAX_LOADED_BYTES = 4_000_000_000


@dataclass(frozen=True, slots=True)
class Conversion:
    """A folder of safetensors made from pickle files.

    Attributes:
        folder: The folder, a plain `model`.
        source: The model that was converted, as the user named it.
        revision: Its commit on the hub, else None.
        n_tensors: Tensors that were converted.
        n_bytes: Their bytes.
        weights_sha256: sha256 (hex) of the folder's weights, as in `inspect` and in plans.
        left_out: The names of what the pickle files held besides tensors.
        missing_limits: What this system could not limit for the process that reads pickle files.
        was_complete: The folder held this conversion already, so nothing was written.
    """

    folder: Path
    source: str
    revision: str | None
    n_tensors: int
    n_bytes: int
    weights_sha256: str
    left_out: tuple[str, ...]
    missing_limits: tuple[str, ...]
    was_complete: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """A model to convert.

    Attributes:
        folder: Its folder, resolved.
        root: The folder that every file lies in once links are followed.
        revision: Its commit on the hub, else None.
        pickles: Its pickle files, links followed, by their names in the folder.
        plain: The names of the files that are copied.
    """

    folder: Path
    root: Path
    revision: str | None
    pickles: Mapping[str, Path]
    plain: tuple[str, ...]

    def digests(self) -> dict[str, str]:
        """Return the sha256 of each pickle file, by name."""
        return {name: weights_digest([file]) for name, file in self.pickles.items()}


@os_errors(CheckpointError)
def convert(model: str, output: str | Path, *, revision: str | None = None) -> Conversion:
    """Convert a model whose weights are in pickle files into a folder of safetensors.

    The pickle files are read with `torch.load(weights_only=True)` in a process with limits. A folder that holds the
    same conversion already is left as it is.

    Args:
        model: A folder, or a hub id, whose pickle files are then downloaded.
        output: The new folder.
        revision: Branch, tag or commit of a hub model.

    Raises:
        CheckpointError: The model cannot be used, has no pickle files, or they are damaged or hostile.
        UserError: The output folder holds something else.
        RunError: The process cannot be started, or the folder cannot be written.

    Examples:
        >>> convert("minilm", "converted")
        Traceback (most recent call last):
        ...
        bertfeat.errors.CheckpointError: model minilm: its weights need no conversion; use it as it is
    """
    target = Path(output).expanduser()
    stored = _stored(target)
    source = _find(model, revision)
    origin = {"source": model, "revision": source.revision, "pickles": source.digests()}
    if stored is not None:
        _check_finished(target, stored, origin, source)
        return _conversion(target, stored, None)
    with publish_folder(target, lambda: _stored(target, must_be_empty=True)) as new:
        written = _write(source, new)
        if origin["pickles"] != source.digests():
            raise CheckpointError(
                f"{source.folder}: its pickle files change while they are read; run the command again"
            )
        note = {**origin, **_checked(new, source), "left_out": list(written.left_out), "files": _digests(new)}
        note["versions"] = {"bertfeat": __version__, "torch": version("torch")}
        (new / NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
        for path in (*new.rglob("*"), new):
            (sync_folder if path.is_dir() else sync_file)(path)
    return _conversion(target, note, written)


def read_note(folder: Path) -> dict[str, Any] | None:
    """Return what a folder says of its conversion, or None.

    Raises:
        CheckpointError: The note is malformed.
    """
    path = folder / NOTE
    if not os.path.lexists(path):
        return None
    note = read_json(inside(path, folder.resolve()))
    kinds: dict[str, Any] = {"source": str, "pickles": dict, "files": dict, "left_out": list, "weights_sha256": str}
    kinds |= {"n_tensors": int, "n_bytes": int, "revision": (str, type(None))}
    is_note = all(isinstance(note.get(key), kind) for key, kind in kinds.items())
    texts = [*note["pickles"].values(), *note["files"].values(), *note["left_out"]] if is_note else [None]
    if not all(isinstance(text, str) for text in texts):
        raise CheckpointError(f"{path}: not a note of `bertfeat convert`; remove it")
    return note


def _stored(target: Path, *, must_be_empty: bool = False) -> dict[str, Any] | None:
    """Return the note of a conversion that is there already; None where there is nothing."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UserError(f"{target}: not a folder ({kind_of(target)}); choose another `output`")
    check_parents(target)
    names = [entry.name for entry in target.iterdir()] if target.is_dir() else []
    if not names:
        return None
    note = None if must_be_empty else read_note(target)
    if note is None:
        raise UserError(f"{target}: holds {listed(names)}; choose another `output`")
    return note


def _check_finished(target: Path, stored: Mapping[str, Any], origin: Mapping[str, Any], source: _Source) -> None:
    """Refuse a folder that is not, byte for byte, the conversion of these files."""
    copied = {name: weights_digest([inside(source.folder / name, source.root)]) for name in source.plain}
    is_same = all(stored[key] == origin[key] for key in ("revision", "pickles"))
    if not is_same or any(stored["files"].get(name) != digest for name, digest in copied.items()):
        what = f"the conversion of {stored['source']!r:.100}, from other files"
        raise UserError(f"{target}: holds {what}; choose another `output`")
    changed = {name for name, _ in stored["files"].items() ^ _digests(target).items()} - {NOTE}
    if changed:
        raise UserError(
            f"{target}: its files have changed since they were written ({listed([*changed])}); remove the folder"
        )


def _find(name: str, revision: str | None) -> _Source:
    try:
        checkpoint = open_checkpoint(name, revision)
        folder, commit, of_encoder = checkpoint.folder, checkpoint.revision, False
    except PickleOnly as error:
        folder, commit, of_encoder = error.folder, error.commit, True
    wanted = [*([folder] if of_encoder else []), *(folder / place for place in _lacks_dense(folder))]
    if commit is not None and not all(os.path.lexists(place / PICKLE) for place in wanted):
        hub.fetch_pickles(name, commit, of_encoder=of_encoder)
    root = model_root(folder)
    names = [
        *(_pickles(folder, root) if of_encoder else ()),
        *(f"{place}/{PICKLE}" for place in _lacks_dense(folder) if os.path.lexists(folder / place / PICKLE)),
    ]
    if not names:
        raise CheckpointError(f"model {name}: its weights need no conversion; use it as it is")
    pickles = {pickle: inside(folder / pickle, root) for pickle in names}
    # Folders of modules of sentence-transformers; other folders with a config.json are other models.
    has_modules = os.path.lexists(folder / "modules.json")
    plain = [name for name in hub.wanted_files(folder) if has_modules or "/" not in name]
    if of_encoder:
        # Files of safetensors without their index are not the model's weights.
        plain = [name for name in plain if "/" in name or not name.endswith((".safetensors", INDEX))]
    return _Source(folder, root, commit, pickles, tuple(plain))


def _pickles(folder: Path, root: Path) -> list[str]:
    if os.path.lexists(folder / PICKLE):
        return [PICKLE]
    if os.path.lexists(folder / PICKLE_INDEX):
        return indexed(inside(folder / PICKLE_INDEX, root), ".bin")
    raise CheckpointError(f"{folder}: no {PICKLE} in it; download the model again")


def _lacks_dense(folder: Path) -> list[str]:
    """Return the folders of dense layers of sentence-transformers that have no safetensors."""
    return sorted(path.name for path in folder.glob("*_Dense") if not os.path.lexists(path / SINGLE))


def _write(source: _Source, new: Path) -> Written:
    """Write the weights, then the files that are copied, so that only a whole folder has a config.json."""
    work = new / "work"
    work.mkdir()
    written = read_pickles(list(source.pickles.values()), work, LIMITS)
    shards: dict[str, list[Path]] = {}
    for name, made in zip(source.pickles, written.shards, strict=True):
        shards.setdefault(str(Path(name).parent), []).extend(made)
    for place, files in shards.items():
        (new / place).mkdir(exist_ok=True)
        _name_shards(new / place, files)
    shutil.rmtree(work)
    for name in source.plain:
        file = inside(source.folder / name, source.root)
        (new / name).parent.mkdir(exist_ok=True)
        if not name.endswith(".safetensors") and file.stat().st_size > MAX_TOKENIZER_BYTES:
            raise CheckpointError(f"{source.folder / name}: too large for this file; limit {MAX_TOKENIZER_BYTES} bytes")
        if name.endswith(".json") and name != "modules.json":
            read_json(file, MAX_TOKENIZER_BYTES)
        shutil.copyfile(file, new / name)
    return written


def _name_shards(folder: Path, files: list[Path]) -> None:
    """Give files of safetensors the names that transformers looks for, with an index if they are several."""
    for file in files:
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise CheckpointError(
                f"{folder}: the process that reads pickle files left {file.name}, which is not a file"
            )
    if len(files) == 1:
        files[0].rename(folder / SINGLE)
        return
    names: dict[str, str] = {}
    n_bytes = 0
    for number, file in enumerate(files, 1):
        shard = f"model-{number:05}-of-{len(files):05}.safetensors"
        for name in read_header(file):
            if names.setdefault(name, shard) != shard:
                raise CheckpointError(f"tensor {name!r:.100} is in two pickle files of one model; they are damaged")
        n_bytes += _n_tensor_bytes(file)
        file.rename(folder / shard)
    index = {"metadata": {"total_size": n_bytes}, "weight_map": dict(sorted(names.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _n_tensor_bytes(file: Path) -> int:
    with file.open("rb") as opened:
        return file.stat().st_size - 8 - int.from_bytes(opened.read(8), "little")


def _checked(new: Path, source: _Source) -> dict[str, Any]:
    """Load what was written, and return how much it is and its digest."""
    made = [path for path in new.rglob("*.safetensors") if path.relative_to(new).as_posix() not in source.plain]
    n_bytes = sum(map(_n_tensor_bytes, made))
    try:
        checkpoint = open_checkpoint(str(new))
        from bertfeat.encoder.loading import load_encoder

        load_encoder(checkpoint, [checkpoint.n_layers if n_bytes <= _MAX_LOADED_BYTES else 1])
    except CheckpointError as error:
        raise CheckpointError(f"after conversion, {str(error).replace(str(new), str(source.folder))}") from None
    return {
        "n_tensors": sum(len(read_header(path)) for path in made),
        "n_bytes": n_bytes,
        "weights_sha256": checkpoint.weights_sha256,
    }


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {path.relative_to(folder).as_posix(): weights_digest([path]) for path in files}


def _conversion(folder: Path, note: Mapping[str, Any], written: Written | None) -> Conversion:
    values = {name: note[name] for name in ("source", "revision", "n_tensors", "n_bytes", "weights_sha256")}
    return Conversion(
        folder=folder,
        left_out=tuple(note["left_out"]),
        missing_limits=written.missing_limits if written else (),
        was_complete=written is None,
        **values,
    )
