"""Probes on disk: a folder with `probe.json` and `weights.safetensors`, and never a pickle.

Each file's digest stands in `probe.json`: a flipped byte is found before anything is used. A folder is written beside
its place, under a hidden name, and renamed when it is whole (`written_aside`).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save_file
from sklearn.utils.validation import check_is_fitted

from bertfeat._version import __version__
from bertfeat.errors import RunError, UserError
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.registry import make_head
from bertfeat.replacement import recover, standing, written_aside
from bertfeat.store.files import sync_fd, write_errors

FORMAT_VERSION = 1
DOCUMENT = "probe.json"
WEIGHTS = "weights.safetensors"

# The fields of the document and their types.
_FIELDS: dict[str, type] = {
    "format_version": int,
    "bertfeat": str,
    "head": str,
    "params": dict,
    "classes": dict,
    "state": dict,
    "weights": dict,
    "extra": dict,
    "sha256": str,
}
_LABEL_TYPES = {"U": str, "i": int, "u": int, "b": bool}
# Class names in an array take the width of the longest of them; a damaged width must not take all memory.
_MAX_CLASS_BYTES = 1 << 28


def save_probe(probe: Probe, folder: str | Path, extra: dict[str, Any], *, overwrite: bool = False) -> None:
    """Save a fitted probe.

    Args:
        probe: The probe.
        folder: Where to; it appears when all of it is written. Missing parents are made.
        extra: JSON that is kept along with it, such as where its features come from.
        overwrite: Replace a probe that stands there.

    Raises:
        UserError: Something else stands there, or `extra` cannot be JSON.
        RunError: The system refused a write; nothing of it is left, and what stood there still does.
    """
    check_is_fitted(probe, "classes_")
    target = Path(os.path.abspath(folder))  # noqa: PTH100  # resolve() would follow a symbolic link
    check_target(target, overwrite=overwrite)
    arrays, state = probe.get_state()
    document = {
        "format_version": FORMAT_VERSION,
        "bertfeat": __version__,
        "head": probe.head,
        "params": probe.get_params(deep=False),
        "classes": {"dtype": probe.classes_.dtype.str, "values": probe.classes_.tolist()},
        "state": state,
        "extra": extra,
    }
    try:
        document = json.loads(json.dumps(document, allow_nan=False, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{folder}: the probe cannot be saved as JSON: {error}") from None
    try:
        _write(target, arrays, document, overwrite=overwrite)
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise RunError(
            f"{folder}: the probe cannot be written: {reason.lower()}; see to it and save it again"
        ) from error


def load_probe(folder: str | Path) -> tuple[Probe, dict[str, Any]]:
    """Return a saved probe and what was kept along with it.

    Args:
        folder: The folder that it was saved in.

    Raises:
        UserError: There is no probe, it is damaged, or of a newer format.
    """
    where = standing(Path(folder))
    document = _read_document(where)
    weights = _read(where, WEIGHTS)
    noted = document["weights"]
    if noted != {"sha256": hashlib.sha256(weights).hexdigest(), "n_bytes": len(weights)}:
        raise _damaged(where, f"{WEIGHTS} is not the file that was saved")
    try:
        arrays = load(weights)
    except (SafetensorError, KeyError, ValueError) as error:
        raise _damaged(where, f"{WEIGHTS}: {error}") from None
    try:
        probe = make_head(document["head"], **document["params"])
        probe.classes_ = _classes(document["classes"])
        probe.set_state(arrays, document["state"])
    except UserError as error:
        raise _damaged(where, str(error)) from None
    return probe, document["extra"]


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a probe may be saved at a path; one that a killed replacement left aside gets its place back first.

    Raises:
        UserError: Something else stands there, or a probe and it is not to be replaced.
        RunError: The system refused.
    """
    with write_errors(target.parent, target.name):
        recover(target)
    _check_place(target, overwrite=overwrite)


def _check_place(target: Path, *, overwrite: bool) -> None:
    if target.is_symlink():
        raise UserError(f"{target}: a symbolic link; remove it or save the probe elsewhere")
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise UserError(f"{target}: not a folder; remove it or save the probe elsewhere")
    entries = {entry.name: entry for entry in target.iterdir()}
    if not entries:
        return
    foreign = [name for name, entry in entries.items() if not _is_own(entry)]
    if DOCUMENT not in entries or foreign:
        example = sorted(foreign or entries)[0]
        raise UserError(f"{target}: not empty and no probe (it has {example}); save the probe elsewhere")
    if not overwrite:
        raise UserError(f"{target}: a probe stands there; overwrite it or save elsewhere")


def _is_own(entry: Path) -> bool:
    return entry.name in (DOCUMENT, WEIGHTS) and entry.is_file() and not entry.is_symlink()


def _write(target: Path, arrays: dict[str, npt.NDArray[Any]], document: dict[str, Any], *, overwrite: bool) -> None:
    """Write a probe beside its place and move it there, unless another process has saved one there meanwhile."""
    with written_aside(target, lambda: _check_place(target, overwrite=overwrite)) as folder:
        weights = folder / WEIGHTS
        # safetensors writes the memory as it lies.
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, weights)
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            sync_fd(file.fileno())
        document["weights"] = {"sha256": digest, "n_bytes": weights.stat().st_size}
        document["sha256"] = _digest_of(document)
        with (folder / DOCUMENT).open("x", encoding="ascii") as text:
            json.dump(document, text, indent=1)
            text.write("\n")
            text.flush()
            sync_fd(text.fileno())


def _read_document(where: Path) -> dict[str, Any]:
    """Return the checked fields of a saved probe."""
    try:
        document = json.loads(_read(where, DOCUMENT).decode("ascii"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"{DOCUMENT}: {error}") from None
    version = document.get("format_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UserError(
            f"{where}: format_version {version}, this bertfeat reads up to {FORMAT_VERSION}; upgrade bertfeat"
        )
    if not isinstance(document, dict) or {name: type(value) for name, value in document.items()} != _FIELDS:
        raise _damaged(where, f"{DOCUMENT} does not have the fields of a probe")
    if version != FORMAT_VERSION or document["sha256"] != _digest_of(document):
        raise _damaged(where, f"{DOCUMENT} is not the file that was saved")
    return document


def _read(where: Path, name: str) -> bytes:
    """Return a file of a saved probe, never a special file."""
    try:
        fd = os.open(where / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123  # a descriptor, not a path
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise UserError(f"{where / name}: not a regular file")
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        what = f"not a saved probe: it has no {name}" if where.exists() else "no such folder"
        raise UserError(f"{where}: {what}") from None
    except OSError as error:
        raise UserError(f"{where / name}: cannot be read: {(error.strerror or str(error)).lower()}") from None


def _classes(noted: dict[str, Any]) -> Labels:
    """Return the classes of a saved probe, of the type that they had."""
    if (
        set(noted) != {"dtype", "values"}
        or not isinstance(noted["dtype"], str)
        or not isinstance(noted["values"], list)
    ):
        raise UserError("its classes are no list of labels with their type")
    values = noted["values"]
    try:
        dtype = np.dtype(noted["dtype"])
        if dtype.kind not in _LABEL_TYPES or dtype.itemsize * len(values) > _MAX_CLASS_BYTES:
            raise UserError(f"its classes cannot be of type {noted['dtype']!r}")
        classes = np.array(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"its classes are not of type {noted['dtype']!r}: {error}") from None
    if any(type(value) is not _LABEL_TYPES[dtype.kind] for value in values) or classes.tolist() != values:
        raise UserError(f"its classes are not of type {noted['dtype']!r}")
    if len(values) == 0 or not np.array_equal(np.unique(classes), classes):
        raise UserError("its classes are not sorted, or none")
    return classes


def _digest_of(document: dict[str, Any]) -> str:
    """Return the SHA-256 of all fields but the digest itself, whatever the white space."""
    fields = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _plain(value: object) -> object:
    """Return a NumPy number or array as JSON knows it."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _damaged(where: Path, reason: str) -> UserError:
    return UserError(f"{where}: cannot be loaded as a probe: {' '.join(reason.split())}; save it again")
