"""Writes report files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from bertfeat.errors import RunError, UserError
from bertfeat.store.files import sync_folder


def write_whole(path: str | Path, data: bytes) -> Path:
    """Write a file under a name of its own, then give it its final one; what stood there before is replaced.

    Raises:
        UserError: There is no such folder, or the path is a folder.
        RunError: The system refused; the old file, if any, is unchanged, or the new one is there.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: no such folder; create it first")
    if target.is_dir():
        raise UserError(f"{target}: is a folder; choose another name for the file")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise RunError(f"{target}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    return target
