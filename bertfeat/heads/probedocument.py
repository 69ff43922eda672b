"""Document and place of a saved probe: `probe.json` is checked without its weights, the place without the heads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from bertfeat.durable.decoding import check_version
from bertfeat.durable.files import read_small
from bertfeat.durable.placecheck import check_folder, other_kind
from bertfeat.durable.publication import recover
from bertfeat.errors import UserError

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


def read_document(where: Path) -> dict[str, Any]:
    """Return the checked fields of a saved probe.

    Raises:
        UserError: The folder has no probe, or its document is damaged or of a newer format.
    """
    try:
        document = json.loads(read_file(where, DOCUMENT).decode("ascii"), parse_constant=_refuse_constant)
        check_version(where, document if isinstance(document, dict) else {}, FORMAT_VERSION)
    except (ValueError, RecursionError) as error:
        raise damaged(where, f"{DOCUMENT}: {error}") from None
    if not isinstance(document, dict) or {name: type(value) for name, value in document.items()} != _FIELDS:
        raise damaged(where, f"{DOCUMENT} does not have the fields of a probe")
    if document["format_version"] != FORMAT_VERSION or document["sha256"] != digest_of(document):
        raise damaged(where, f"{DOCUMENT} is not the file that was saved")
    return document


def read_file(where: Path, name: str) -> bytes:
    """Return a file of a saved probe, never a special file.

    Raises:
        UserError: The file is missing or cannot be read.
    """
    try:
        return read_small(where / name, follow_links=True)
    except (FileNotFoundError, NotADirectoryError):
        what = (
            f"{other_kind(where, 'probe')}not a saved probe: it has no {name}" if where.exists() else "no such folder"
        )
        raise UserError(f"{where}: {what}") from None
    except OSError as error:
        raise UserError(f"{where / name}: cannot be read: {(error.strerror or str(error)).lower()}") from None


def digest_of(document: dict[str, Any]) -> str:
    """Return the SHA-256 of all fields but the digest itself, whatever the whitespace."""
    fields = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def damaged(where: Path, reason: str) -> UserError:
    """Return the error of a probe that cannot be used."""
    return UserError(f"{where}: cannot be loaded as a probe: {' '.join(reason.split())}; save it again")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
