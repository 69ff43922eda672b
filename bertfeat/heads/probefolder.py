"""Probes on disk: a folder with `probe.json` and `weights.safetensors`, and never a pickle.

`probe.json` has the digest of each file, so a flipped byte is found before anything is used. A folder is written beside
its place, under a hidden name, and renamed when it is whole (`publish_folder`).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save_file
from sklearn.utils.validation import check_is_fitted

from bertfeat._version import __version__
from bertfeat.durable.publication import publish_folder, standing
from bertfeat.errors import RunError, UserError
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.probedocument import (
    DOCUMENT,
    FORMAT_VERSION,
    WEIGHTS,
    check_place,
    check_target,
    damaged,
    digest_of,
    read_document,
    read_file,
)
from bertfeat.heads.registry import make_head

_LABEL_TYPES = {"U": str, "i": int, "u": int, "b": bool}
# Every class name in an array takes the width of the longest one; a damaged width must not take all memory.
_MAX_CLASS_BYTES = 1 << 28


def save_probe(probe: Probe, folder: str | Path, extra: dict[str, Any], *, overwrite: bool = False) -> None:
    """Save a fitted probe.

    Args:
        probe: The probe.
        folder: The folder, which appears when all of it is written. Missing parents are made.
        extra: JSON that is saved with the probe, such as the source of its features.
        overwrite: Replace a probe that is already there.

    Raises:
        UserError: Something else is already there, or `extra` cannot be JSON.
        RunError: The system refused a write; the new files are gone, and what was there before is unchanged.
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
    _write(target, arrays, document, overwrite=overwrite)


def load_probe(folder: str | Path) -> tuple[Probe, dict[str, Any]]:
    """Return a saved probe and its extra JSON.

    Raises:
        UserError: The folder has no probe, or the probe is damaged or has a newer format.
    """
    where = standing(Path(folder))
    document = read_document(where)
    weights = read_file(where, WEIGHTS)
    noted = document["weights"]
    if noted != {"sha256": hashlib.sha256(weights).hexdigest(), "n_bytes": len(weights)}:
        raise damaged(where, f"{WEIGHTS} is not the file that was saved")
    try:
        arrays = load(weights)
    except (SafetensorError, KeyError, ValueError) as error:
        raise damaged(where, f"{WEIGHTS}: {error}") from None
    try:
        probe = make_head(document["head"], **document["params"])
        probe.classes_ = _classes(document["classes"])
        probe.set_state(arrays, document["state"])
    except UserError as error:
        raise damaged(where, str(error)) from None
    return probe, document["extra"]


def _write(target: Path, arrays: dict[str, npt.NDArray[Any]], document: dict[str, Any], *, overwrite: bool) -> None:
    """Publish a probe, unless another process has saved one there meanwhile."""
    with publish_folder(target, lambda: check_place(target, overwrite=overwrite)) as folder:
        weights = folder / WEIGHTS
        try:
            # safetensors writes the memory of an array, whatever its order.
            save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, weights)
        except SafetensorError as error:
            raise RunError(f"{target}: {error}; fix the cause and save it again") from error
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        document["weights"] = {"sha256": digest, "n_bytes": weights.stat().st_size}
        document["sha256"] = digest_of(document)
        (folder / DOCUMENT).write_text(json.dumps(document, indent=1) + "\n", encoding="ascii")


def _classes(noted: dict[str, Any]) -> Labels:
    """Return the classes of a saved probe, of their saved type."""
    if {name: type(value) for name, value in noted.items()} != {"dtype": str, "values": list}:
        raise UserError("its classes are not a list of labels with their type")
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
        raise UserError("its classes are empty or not sorted")
    return classes


def _plain(value: object) -> object:
    """Return a NumPy number or array as a JSON value."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} is a {type(value).__name__}")
