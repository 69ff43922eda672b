"""Replacement of a whole folder by two renames, which every system has: the old folder aside, the new one in.

Between the two renames no folder has the name. Whoever reads then finds the old folder aside (`standing`), and whoever
writes next gives it its name back (`recover`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from bertfeat.store.files import make_folder, sync_folder
from bertfeat.store.steps import step


def aside(final: Path) -> Path:
    """Return the hidden name of a folder that is being replaced, beside its place."""
    final = final.absolute()
    return final.with_name(f".{final.name}.replaced")


def standing(final: Path) -> Path:
    """Return where to read a folder: its place, or aside if a replacement was killed between its renames."""
    old = aside(final)
    return old if not os.path.lexists(final) and old.is_dir() else final


def recover(final: Path) -> None:
    """Finish what a killed replacement left: an old folder gets its name back, or goes where the new one stands.

    Raises:
        OSError: The system refused.
    """
    if aside(final).is_dir():
        with _alone_in(final.absolute().parent):
            _recover(final)


def _recover(final: Path) -> None:
    old = aside(final)
    if not old.is_dir():
        return
    if final.is_dir() and any(final.iterdir()):
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(final)
        sync_folder(old.parent)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes from moving folders into or out of `folder` meanwhile; the lock dies with its process."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def written_aside(final: Path, check: Callable[[], object] | None = None) -> Iterator[Path]:
    """Make a folder beside its place for a block to fill; it gets its place at the end, and goes if the block raises.

    Args:
        final: The place, as for `replace_folder`; missing parents are made.
        check: As for `replace_folder`.

    Raises:
        OSError: The system refused; what stood there still does.
        StoreError: A parent is not a folder, or cannot be made.
    """
    final = final.absolute()
    for parent in reversed([folder for folder in final.parents if not folder.exists()]):
        make_folder(parent)
    new = final.with_name(f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    new.mkdir()
    try:
        yield new
        sync_folder(new)
        replace_folder(new, final, check)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def replace_folder(new: Path, final: Path, check: Callable[[], object] | None = None) -> None:
    """Give a finished folder its place; a folder that stands there moves aside first, and back if that fails.

    Args:
        new: The folder, its files synced, on the same file system.
        final: Its place: nothing, an empty folder, or what is to be replaced.
        check: Called while no other process can replace it; raises if what stands there now must stay.

    Raises:
        OSError: The system refused; what stood there still does.
    """
    old = aside(final)
    with _alone_in(old.parent):
        _recover(final)
        if check is not None:
            check()
        if final.is_dir() and any(final.iterdir()):
            final.rename(old)
            sync_folder(old.parent)
            step("folder aside")
        try:
            new.rename(final)
        except OSError:
            with contextlib.suppress(OSError):
                _recover(final)
            raise
        sync_folder(old.parent)
        step("folder replaced")
        shutil.rmtree(old, ignore_errors=True)
