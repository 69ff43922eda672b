"""Replacement of a whole folder by two renames, which every system has: the old folder aside, the new one in.

Between the two renames no folder has the name. Whoever reads then finds the old folder aside (`standing`), and whoever
writes next gives it its name back (`recover`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from bertfeat.store.files import sync_folder
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
    old = aside(final)
    if not old.is_dir():
        return
    if final.is_dir() and any(final.iterdir()):
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.rename(final)
        sync_folder(old.parent)


def replace_folder(new: Path, final: Path) -> None:
    """Give a finished folder its place; a folder that stands there moves aside first, and back if that fails.

    Args:
        new: The folder, its files synced, on the same file system.
        final: Its place: nothing, an empty folder, or what is to be replaced.

    Raises:
        OSError: The system refused; what stood there still does.
    """
    recover(final)
    old = aside(final)
    if final.is_dir() and any(final.iterdir()):
        final.rename(old)
        sync_folder(old.parent)
        step("folder aside")
    try:
        new.rename(final)
    except OSError:
        with contextlib.suppress(OSError):
            recover(final)
        raise
    sync_folder(old.parent)
    step("folder replaced")
    shutil.rmtree(old, ignore_errors=True)
