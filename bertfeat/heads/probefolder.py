"""Probes on disk: a folder with `probe.json` and `weights.safetensors`, and never a pickle.

Both files have a digest in `probe.json`, so a flipped byte is found before anything is used. A folder is written beside
its place, under a hidden name, and renamed when it is whole (`publish_folder`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file
from sklearn.utils.validation import check_is_fitted

from bertfeat._version import __version__
from bertfeat.durable.publication import publish_folder, standing
from bertfeat.durable.records import FileDigest, read_checked, seal
from bertfeat.errors import RunError, UserError
from bertfeat.heads.base import Probe
from bertfeat.heads.probedocument import (
    DOCUMENT,
    SAVE_AGAIN,
    WEIGHTS,
    Classes,
    ProbeDocument,
    check_place,
    check_target,
    read_document,
)
from bertfeat.heads.registry import make_head


def save_probe(probe: Probe, folder: str | Path, extra: Any, *, overwrite: bool = False) -> None:
    """Save a fitted probe.

    Args:
        probe: The probe.
        folder: The folder, which appears when all of it is written. Missing parents are made.
        extra: A record or JSON values that are saved with the probe, such as the source of its features.
        overwrite: Replace a probe that is already there.

    Raises:
        UserError: Something else is already there, or `extra` cannot be JSON.
        RunError: The system refused a write; the new files are gone, and what was there before is unchanged.
    """
    check_is_fitted(probe, "classes_")
    target = Path(os.path.abspath(folder))  # noqa: PTH100  # resolve() would follow a symbolic link
    check_target(target, overwrite=overwrite)
    arrays, state = probe.get_state()
    classes = Classes(probe.classes_.dtype.str, tuple(probe.classes_.tolist()))
    with publish_folder(target, lambda: check_place(target, overwrite=overwrite)) as new:
        weights = new / WEIGHTS
        try:
            # safetensors writes the memory of an array, whatever its order.
            save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, weights)
        except SafetensorError as error:
            raise RunError(f"{target}: {error}; fix the cause and save it again") from error
        digest = FileDigest.of(weights)
        params = probe.get_params(deep=False)
        try:
            document = seal(ProbeDocument(__version__, probe.head, params, classes, state, extra, digest))
        except (TypeError, ValueError) as error:
            raise UserError(f"{folder}: the probe cannot be saved as JSON: {error}") from None
        (new / DOCUMENT).write_bytes(document)


def load_probe(folder: str | Path) -> tuple[Probe, Any]:
    """Return a saved probe, and the JSON values that were saved with it.

    Raises:
        UserError: The folder has no probe, or the probe is damaged or has a newer format.
    """
    where = standing(Path(folder))
    document = read_document(where)
    arrays = load(read_checked(where / WEIGHTS, document.weights, SAVE_AGAIN))
    try:
        probe = make_head(document.head, **document.params)
        probe.classes_ = np.array(document.classes.values, dtype=document.classes.dtype)
        probe.set_state(arrays, document.state)
    except UserError as error:
        # Saved by a version with other heads or parameters.
        raise UserError(f"{where}: cannot be loaded as a probe: {error}; {SAVE_AGAIN}") from None
    return probe, document.extra
