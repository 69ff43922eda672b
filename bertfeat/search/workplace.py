"""The hidden folder beside an index where it is made: one process at a time, taken up again after a kill."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertfeat.ann.indexfiles import no_step, write_json
from bertfeat.ann.indexfolder import building_folder, check_place
from bertfeat.errors import UserError
from bertfeat.replacement import aside, recover
from bertfeat.store import files

ASKED = "asked.json"
# What is published: the files of the index and nothing else.
READY = "ready"


@contextmanager
def workplace(index: Path) -> Iterator[Path]:
    """Make and lock the folder in which an index is made; it goes when it is empty or the index stands.

    An index that a killed replacement left aside gets its place back first.

    Raises:
        UserError: Another process is making this index, or there is no folder for it to stand in.
        RunError: The system refused.
    """
    folder = building_folder(index)
    if not folder.parent.is_dir():
        raise UserError(f"{index}: no folder {folder.parent}; make it first")
    fd = _locked(folder, index)
    try:
        with files.write_errors(index.parent, index.name):
            recover(index)
        yield folder
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        os.close(fd)


def tidy(index: Path) -> None:
    """Finish what a kill has left beside an index: the old one aside, or an empty folder where one was made."""
    if building_folder(index).exists() or aside(index).exists():
        with workplace(index):
            pass


def _locked(folder: Path, index: Path) -> int:
    """Return an open folder, locked. The kernel lets the lock go with the process: none is ever stale."""
    while True:
        files.make_folder(folder)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise UserError(f"{index}: another process is making this index; wait for it or stop it") from None
        if _is_current(fd, folder):
            return fd
        # Its owner was done and took it away between our two steps.
        os.close(fd)


def _is_current(fd: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), folder.stat())
    except FileNotFoundError:
        return False


def take_up(folder: Path, index: Path, asked: Mapping[str, Any], *, overwrite: bool) -> None:
    """Go on with what lies in the folder if the same is asked for, else start anew.

    Args:
        folder: The folder, locked.
        index: The index, for messages.
        asked: What is asked for: JSON values.
        overwrite: An unfinished index of something else may go.

    Raises:
        UserError: It holds an unfinished index of something else; the message names the fields.
    """
    before = _asked(folder)
    if before == dict(asked):
        return
    if before is not None and not overwrite:
        raise UserError(
            f"{index}: begun with other settings ({differing(before, asked)}); go on with those, or pass --overwrite"
        )
    empty(folder)
    write_json(folder / ASKED, dict(asked), no_step)


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the fields in which two requests differ, with both values."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return "; ".join(f"{name} {_short(before.get(name))}, now {_short(now.get(name))}" for name in names)


def empty(folder: Path) -> None:
    """Remove everything in a folder."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def fresh_ready(folder: Path) -> Path:
    """Return the folder for the files of the finished index, empty."""
    ready = folder / READY
    shutil.rmtree(ready, ignore_errors=True)
    ready.mkdir()
    return ready


def is_index(index: Path) -> bool:
    """Tell whether an index stands at a place, whole or damaged; what is something else is refused.

    Raises:
        UserError: Something else stands there.
    """
    check_place(index, overwrite=True)
    return index.is_dir() and any(index.iterdir())


def _asked(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / ASKED).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _short(value: object) -> str:
    text = str(value)
    return text[:12] + "…" if len(text) > 24 else text
