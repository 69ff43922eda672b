"""Finder of a model by its name: an installed package, a folder or a file, or a model of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bertfeat.durable.files import os_errors
from bertfeat.encoder import hub
from bertfeat.encoder.packaged import PackagedModel, find_packaged, packaged_hint
from bertfeat.errors import CheckpointError


class Place(NamedTuple):
    """Where the files of a model are.

    Attributes:
        folder: Their folder, resolved; the file itself if it is one of word vectors.
        commit: The commit of a hub model, else None.
        pinned: The digest that the weights of an installed package must have, else None.
    """

    folder: Path
    commit: str | None = None
    pinned: str | None = None


@os_errors(CheckpointError)
def locate(name: str, revision: str | None) -> Place:
    """Find a model: an installed package, then a folder or file, then a hub model, which is downloaded.

    Args:
        name: The name that the user gave.
        revision: Branch, tag or commit of a hub model.

    Raises:
        CheckpointError: There is no such model, or the hub cannot be reached.
    """
    packaged = _packaged(name)
    folder = Path(name).expanduser()
    if packaged is not None or folder.is_dir() or folder.is_file():
        if revision is not None:
            raise CheckpointError(f"`revision='{revision}'`: model {name!r} is not a hub model; drop `revision`")
        if packaged is None:
            return Place(folder.resolve())
        return Place(packaged.folder.resolve(), pinned=packaged.weights_sha256)
    if _is_path(name) or not hub.is_hub_id(name):
        what = "not a folder or a file" if folder.exists() else "no such folder"
        raise CheckpointError(
            f"model {name!r}: {what}, no installed model package ({packaged_hint(name)}), "
            "and not a hub id (owner/model)"
        )
    fetched, commit = hub.fetch(name, revision)
    return Place(fetched.resolve(), commit)


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~"))


def _packaged(name: str) -> PackagedModel | None:
    return None if _is_path(name) else find_packaged(name)


def name_elsewhere(name: str) -> str:
    """Return the name of the model on another machine with the same files: for a folder or file, its absolute path.

    Examples:
        >>> name_elsewhere("minilm")
        'minilm'
    """
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.exists() and _packaged(name) is None else name
