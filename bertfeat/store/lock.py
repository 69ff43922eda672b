"""One writer a store: a kernel lock that dies with its process, so that none is ever stale."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path

from bertfeat.errors import StoreError
from bertfeat.store import files, layout

_MAX_OWNER_BYTES = 4096


class StoreLock:
    """The lock on `_bertfeat/lock`, held from construction until `release`.

    Raises:
        StoreError: Another process holds it; the message has its id and host.
        RunError: The system refused to write the owner's name into it.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / layout.LOCK
        self._fd = -1
        try:
            # A writer that finds nothing to keep removes the folder with the lock in it: take the one that is there.
            while self._fd < 0 or not self._is_current():
                self.release()
                self._take(root)
            with files.write_errors(root, layout.LOCK):
                owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n"
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, owner.encode(), 0)
        except BaseException:
            self.release()
            raise

    def _take(self, root: Path) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be locked: {(error.strerror or str(error)).lower()}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(self._fd)
            self.release()
            raise StoreError(f"{root}: {owner} is writing this store; wait for it or stop it") from None
        except OSError as error:
            self.release()
            raise StoreError(f"{self._path}: cannot be locked: {(error.strerror or str(error)).lower()}") from error

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.lstat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let another process write; the file stays."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # The lock goes whatever the system says of the file, in which there is nothing but the owner's name.
            with contextlib.suppress(OSError):
                os.close(fd)


def _owner(fd: int) -> str:
    """Name the holder of a lock from what it wrote, which may be torn or not yet written."""
    try:
        content = json.loads(os.pread(fd, _MAX_OWNER_BYTES, 0))
        return f"process {int(content['pid'])} on host {content['host']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"
