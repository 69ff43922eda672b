"""Document and place of a saved probe; neither its weights nor its head is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfeat.durable.placecheck import check_folder
from bertfeat.durable.publication import recover
from bertfeat.durable.records import FileDigest, read_record

FORMAT_VERSION = 1
DOCUMENT = "probe.json"
WEIGHTS = "weights.safetensors"
SAVE_AGAIN = "save the probe again"


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a probe, sorted: their NumPy type, and their values."""

    dtype: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ProbeDocument:
    """The content of `probe.json`.

    Attributes:
        bertfeat: The version that saved it.
        head: The head.
        params: Its parameters.
        classes: The classes.
        state: The part of the fitted state that is not arrays: JSON values.
        extra: What is saved with the probe: JSON values.
        weights: The size and digest of the file with the arrays.
        format_version: The version of the format.
    """

    bertfeat: str
    head: str
    params: Mapping[str, Any]
    classes: Classes
    state: Mapping[str, Any]
    extra: Any
    weights: FileDigest
    format_version: int = FORMAT_VERSION


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a probe may be saved at a path; a probe that a killed replacement moved aside returns to it first.

    Raises:
        UserError: Something else is already there, or a probe that must not be replaced.
        RunError: The system refused.
    """
    recover(target)
    check_place(target, overwrite=overwrite)


def check_place(target: Path, *, overwrite: bool) -> None:
    """Check that a path has nothing but, with `overwrite`, a probe.

    Raises:
        UserError: Something else is already there, or a probe that must not be replaced.
    """
    check_folder(target, "a probe", (DOCUMENT, WEIGHTS), overwrite=overwrite)


def read_document(where: Path) -> ProbeDocument:
    """Return the document of a saved probe.

    Raises:
        UserError: The folder has no probe, or its document is damaged or of a newer format.
    """
    return read_record(ProbeDocument, where, "probe", FORMAT_VERSION, SAVE_AGAIN)
