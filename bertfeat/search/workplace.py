"""Hidden folder next to an index, in which it is made: one process at a time, resumed after a kill."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertfeat.ann.indexfiles import write_json
from bertfeat.ann.indexfolder import building_folder, check_place
from bertfeat.durable.differences import differing, named
from bertfeat.durable.filelock import lock
from bertfeat.durable.files import make_folder, os_errors, write_errors
from bertfeat.durable.placecheck import check_folder_above
from bertfeat.durable.publication import recover, replaced
from bertfeat.durable.records import decode
from bertfeat.errors import UserError

ASKED = "asked.json"
# The folder that is published: the files of the index and nothing else.
READY = "ready"


@contextmanager
def workplace(index: Path) -> Iterator[Path]:
    """Make and lock the folder in which an index is made; remove it in the end if it is empty.

    An index that a killed replacement left aside gets its place back first.

    Raises:
        UserError: Another process is making this index, or there is no folder for it.
        RunError: The system refused.
    """
    folder = building_folder(index)
    check_folder_above(index)
    with write_errors(folder):
        try:
            fd = lock(folder, os.O_RDONLY | os.O_DIRECTORY, make=make_folder)
        except BlockingIOError:
            raise UserError(f"{index}: another process is making this index; wait for it or stop it") from None
    try:
        recover(index)
        yield folder
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        os.close(fd)


@os_errors(UserError)
def tidy(index: Path) -> None:
    """Recover after a kill: restore the index that was moved aside, or remove the empty folder."""
    if building_folder(index).exists() or replaced(index).exists():
        with workplace(index):
            pass


def take_up(folder: Path, index: Path, asked: Mapping[str, Any], *, overwrite: bool) -> None:
    """Resume what is in the locked folder of an index if `asked`, its settings, are the same, else start again.

    Raises:
        UserError: The folder holds an unfinished index with other settings, and `overwrite` is not given.
    """
    before = _asked(folder)
    if before == dict(asked):
        return
    if before is not None and not overwrite:
        text = f"{index}: begun with other settings ({named(differing(before, asked))})"
        raise UserError(f"{text}; use those, or pass `overwrite`")
    empty(folder)
    write_json(folder / ASKED, dict(asked))


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


@os_errors(UserError)
def is_index(index: Path) -> bool:
    """Return whether there is an index at a place, whole or damaged; raise a UserError if there is anything else."""
    check_place(index, overwrite=True)
    return index.is_dir() and any(index.iterdir())


def _asked(folder: Path) -> dict[str, Any] | None:
    try:
        return decode(dict[str, Any], (folder / ASKED).read_bytes())
    except (OSError, ValueError):
        return None
