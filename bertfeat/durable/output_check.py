"""Checks of a place to write to, made before the work whose result goes there and again before publishing."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from bertfeat.durable.files import kind_of, os_errors
from bertfeat.errors import UserError

# The kinds of folders, and the files that identify them; one is enough. In this order: a store may hold a copy of a
# model's config.json.
KINDS = {
    "store": ("manifests", "_bertfeat"),
    "probe": ("probe.json",),
    "index": ("index.json",),
    "sweep": ("result.json",),
    "model": ("config.json", "modules.json"),
}
_INSTEAD = "another `output`"
_MAX_NAMED = 5


def check_parents(target: Path, instead: str = _INSTEAD) -> None:
    """Check that a file or folder can be made at a path; `instead` says in the message what to choose otherwise."""
    for parent in target.absolute().parents:
        if not os.path.lexists(parent):
            continue
        if not parent.is_dir():
            raise UserError(f"{target}: {parent} is not a folder; choose {instead}")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"{target}: {parent} may not be written to; choose {instead}")
        return


def check_folder_above(path: Path) -> None:
    """Refuse a place in a folder that does not exist."""
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path}: no folder {path.absolute().parent}; create it first")


@os_errors(UserError)
def check_file(path: Path, *, overwrite: bool, endings: Sequence[str] = (), instead: str = _INSTEAD) -> None:
    """Refuse a place where a file cannot or may not be written, or whose name has none of some lower-case endings."""
    is_there = os.path.lexists(path)
    if is_there and (path.is_symlink() or not path.is_file()):
        raise UserError(f"{path}: not a file ({kind_of(path)}); choose {instead}")
    if endings and path.suffix.lower() not in endings:
        raise UserError(f"{path}: name a file that ends in {' or '.join(endings)}")
    if is_there and not overwrite:
        raise UserError(f"{path}: there is a file already; choose {instead}, or pass `overwrite`")
    check_parents(path, instead)


@os_errors(UserError)
def check_folder(folder: Path, what: str, own: Sequence[str], *, overwrite: bool) -> None:
    """Refuse a place where a folder of files cannot or may not be written; an empty folder is accepted.

    `own` are the names of its files, and with a slash of folders; the first of them identifies such a folder.
    """
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        raise UserError(f"{folder}: not a folder ({kind_of(folder)}); choose {_INSTEAD}")
    check_parents(folder)
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    modes = {entry.name: entry.lstat().st_mode for entry in entries}
    kinds = {name: stat.S_ISDIR(mode) for name, mode in modes.items() if stat.S_ISREG(mode) or stat.S_ISDIR(mode)}
    foreign = [name for name in modes if name not in kinds or name + "/" * kinds[name] not in own]
    if entries and not (folder / own[0]).exists():
        foreign = [entry.name for entry in entries]
    if foreign:
        raise UserError(f"{folder}: holds files that are not part of {what} ({listed(foreign)}); choose {_INSTEAD}")
    if entries and not overwrite:
        raise UserError(f"{folder}: there is {what} already; choose {_INSTEAD}, or pass `overwrite`")


def kind_at(place: Path) -> str | None:
    """Return the kind of a folder among `KINDS`, by its files."""
    found = (kind for kind, names in KINDS.items() if any(os.path.lexists(place / name) for name in names))
    return next(found, None)


def other_kind(place: object, kind: str) -> str:
    """Return the beginning of a message on a folder of another kind: `is a probe, `; empty if it is of none."""
    found = kind_at(place) if isinstance(place, Path) else None
    return f"is {named_kind(found)}, " if found not in (None, kind) else ""


def named_kind(kind: str | None) -> str:
    """Return a kind of folder with its article."""
    return f"{'an' if kind == 'index' else 'a'} {kind}"


def listed(names: Sequence[str]) -> str:
    """Return the first few names, for a message."""
    return ", ".join(sorted(names)[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")
