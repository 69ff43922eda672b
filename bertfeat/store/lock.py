"""Lock of a folder on a file system: a courtesy that names the process that writes; it ends with its process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from types import TracebackType

from bertfeat.durable.filelock import ALONE, SHARED, lock
from bertfeat.durable.files import read_small, write_errors
from bertfeat.errors import StoreError
from bertfeat.store import layout


class StoreLock:
    """The lock on `_bertfeat/lock`, held from construction until `release` or the end of a `with` block.

    Args:
        root: The folder.
        name: Another name of the lock's file.
        what: What its holder does, for the message.
        shared: Let others hold it too, who also share it.

    Raises:
        StoreError: Another process holds it; the message has its id and host.
        RunError: The system refused to write the owner's name into the file.
    """

    def __init__(
        self, root: Path, name: str = layout.LOCK, what: str = "is writing this store", *, shared: bool = False
    ) -> None:
        path = root / name
        try:
            self._fd = lock(path, os.O_RDWR | os.O_CREAT, SHARED if shared else ALONE)
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

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

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
