"""Kernel locks on files and folders: they end with their process, so none is ever stale."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from bertfeat.durable.files import read_small, write_errors
from bertfeat.errors import StoreError

ALONE = fcntl.LOCK_EX | fcntl.LOCK_NB
ALONE_AFTER_OTHERS = fcntl.LOCK_EX
SHARED = fcntl.LOCK_SH | fcntl.LOCK_NB


def lock(path: Path, flags: int, kind: int = ALONE, make: Callable[[Path], object] | None = None) -> int:
    """Open and lock the file at a path; return its descriptor, which releases the lock when it is closed.

    If a former holder removes the file between the two steps, the next file at the path is locked. `make` creates the
    file if it is missing, and is called before each try. Raises BlockingIOError if another process holds the lock.
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


@contextlib.contextmanager
def folder_lock(root: Path, name: str, what: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock on a file in a folder during the block; the file stays, and names the last holder."""
    path = root / name
    try:
        fd = lock(path, os.O_RDWR | os.O_CREAT, SHARED if shared else ALONE)
    except BlockingIOError:
        raise StoreError(f"{root}: {_owner(path)} {what}; wait for it or stop it") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be locked: {(error.strerror or str(error)).lower()}") from error
    try:
        with write_errors(path):
            owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n"
            os.ftruncate(fd, 0)
            os.pwrite(fd, owner.encode(), 0)
        yield
    finally:
        # The lock ends even if closing reports an error; the file holds only the owner's name.
        with contextlib.suppress(OSError):
            os.close(fd)


def _owner(path: Path) -> str:
    """Return the name of a lock's holder; the file may be incomplete or not yet written."""
    try:
        content = json.loads(read_small(path))
        return f"process {int(content['pid'])} on host {content['host']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"
