"""Probes on disk: a folder with `probe.json`, which has the digest of both files, and `weights.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from bertfeat._version import __version__
from bertfeat.choices import Task
from bertfeat.durable.publication import OutputFolder, standing
from bertfeat.durable.records import FileDigest, read_checked, read_record, seal
from bertfeat.errors import RunError, UserError
from bertfeat.heads.registry import make_head

if TYPE_CHECKING:
    from bertfeat.heads.base import Probe

FORMAT_VERSION = 1
DOCUMENT = "probe.json"
WEIGHTS = "weights.safetensors"
PROBE_FOLDER = OutputFolder("a probe", (DOCUMENT, WEIGHTS))
SAVE_AGAIN = "save the probe again"


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a probe, sorted: their NumPy type, and their values."""

    dtype: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ProbeDocument:
    """The content of `probe.json`."""

    bertfeat: str  # the version that saved it
    head: str
    params: Mapping[str, Any]
    classes: Classes
    report: Mapping[str, Any]
    extra: Any  # JSON values of the caller
    weights: FileDigest
    task: Task = Task.CLASSIFY
    format_version: int = FORMAT_VERSION


def read_document(where: Path) -> ProbeDocument:
    """Return the document of a saved probe; neither its weights nor its head is loaded."""
    return read_record(ProbeDocument, where, "probe", FORMAT_VERSION, SAVE_AGAIN)


def save_probe(probe: Probe, folder: str | Path, extra: Any, *, overwrite: bool = False) -> None:
    """Save a fitted probe, and a record of the caller, to a folder, which appears when all of it is written."""
    report, arrays = probe.fit_report(), probe.get_state()
    classes = Classes(probe.classes_.dtype.str, tuple(probe.classes_.tolist()))
    with PROBE_FOLDER.publish(folder, overwrite=overwrite) as new:
        try:
            # safetensors writes the memory of an array, whatever its order.
            save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, new / WEIGHTS)
        except SafetensorError as error:
            raise RunError(f"{folder}: {error}; fix the cause and save it again") from error
        digest = FileDigest.of(new / WEIGHTS)
        task = Task(probe.task)
        document = ProbeDocument(__version__, probe.head, probe.settings, classes, report, extra, digest, task)
        (new / DOCUMENT).write_bytes(seal(document))


def load_probe(folder: str | Path) -> tuple[Probe, Any]:
    """Return a saved probe, and the JSON values that were saved with it."""
    where = standing(Path(folder))
    document = read_document(where)
    arrays = load(read_checked(where / WEIGHTS, document.weights, SAVE_AGAIN))
    try:
        probe = make_head(document.head, document.task, **document.params)
    except UserError as error:
        # Saved by a version with other heads or parameters.
        raise UserError(f"{where}: cannot be loaded as a probe: {error}; {SAVE_AGAIN}") from None
    probe.classes_ = np.array(document.classes.values, dtype=document.classes.dtype)
    probe.report_ = dict(document.report)
    return probe.set_state(arrays), document.extra
