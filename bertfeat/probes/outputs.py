"""Checks of a place to write to, made before the work whose result is to stand there."""

from __future__ import annotations

import os
from pathlib import Path

from bertfeat.errors import UserError


def check_parents(target: Path) -> None:
    """Check that a file or folder can be made at a path: what stands above it are folders, and may be written to.

    Raises:
        UserError: Something that is no folder stands above it, or a folder that may not be written to.
    """
    for parent in target.absolute().parents:
        if not os.path.lexists(parent):
            continue
        if not parent.is_dir():
            raise UserError(f"{target}: {parent} is not a folder; choose another --output")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"{target}: {parent} may not be written to; choose another --output")
        return
