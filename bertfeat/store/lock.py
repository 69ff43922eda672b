"""Lock of a folder on a file system, such as a store: one writer, a kernel lock on a file that names its holder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

from bertfeat.durable.filelock import lock
from bertfeat.durable.files import read_small, write_errors
from bertfeat.errors import StoreError
from bertfeat.store import layout


class StoreLock:
    """The lock on `_bertfeat/lock`, held from construction until `release`.

    Args:
        root: The folder.
        name: Another name of the lock's file.
        what: What its holder does, for the message.

    Raises:
        StoreError: Another process holds it; the message has its id and host.
        RunError: The system refused to write the owner's name into the file.
    """

    def __init__(self, root: Path, name: str = layout.LOCK, what: str = "is writing this store") -> None:
        path = root / name
        try:
            self._fd = lock(path, os.O_RDWR | os.O_CREAT)
        except BlockingIOError:
            raise StoreError(f"{root}: {_owner(path)} {what}; wait for it or stop it") from None
        except OSError as error:
            raise StoreError(f"{path}: cannot be locked: {(error.strerror or str(error)).lower()}") from error
        try:
            with write_errors(path):
                owner = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}) + "\n"
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, owner.encode(), 0)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let another process write; the file stays."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
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
