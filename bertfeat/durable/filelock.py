"""Kernel locks on files and folders: they end with their process, so none is ever stale."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

ALONE = fcntl.LOCK_EX | fcntl.LOCK_NB
ALONE_AFTER_OTHERS = fcntl.LOCK_EX
SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB


def lock(path: Path, flags: int, kind: int = ALONE, make: Callable[[Path], object] | None = None) -> int:
    """Open and lock the file at a path; return its descriptor, which releases the lock when it is closed.

    If a former holder removes the file between the two steps, the next file at the path is locked.

    Args:
        path: A file or a folder, not a symbolic link.
        flags: How to open it.
        kind: `ALONE`, `ALONE_AFTER_OTHERS`, which waits, or `SHARED`.
        make: Creates the file if it is missing; called before each try.

    Raises:
        BlockingIOError: Another process holds the lock.
        FileNotFoundError: There is no such file.
        OSError: The system refused.
    """
    while True:
        if make is not None:
            make(path)
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, kind)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False
