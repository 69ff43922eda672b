"""Fence around a run: workers on other machines write only while it is up; taking it down waits for them.

A worker in the run's own process tree dies with the run. A worker on another machine may learn only later that the run
was killed, and must not write into a store that the next run has opened. So it commits under a shared lock on the
run's marker file in the store. The next run takes that lock exclusively, then removes the file.

In an object store nothing can be locked. There a worker checks for the marker object before it begins and before it
commits. A worker whose marker disappears during a commit can only create missing objects, and with the same plan these
are the same parts.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from bertfeat.durable import files
from bertfeat.durable.filelock import SHARED, lock
from bertfeat.errors import RunError, StoreError
from bertfeat.runners.marks import Marks
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store import layout
from bertfeat.store.lock import StoreLock

_PATTERN = "run-*.tmp"
_WAIT_S = 60.0
_POLL_S = 0.05


class Fence(Protocol):
    """The fence of one run; it pickles, and a worker uses a copy."""

    def held(self) -> AbstractContextManager[None]:
        """Keep the fence up during a block, as far as possible; raise RunError if it is down."""

    def take_down(self) -> None:
        """Let no worker write from now on."""


@contextmanager
def fence_around(folder: AnyPath) -> Iterator[Fence]:
    """Put up a fence, a new marker file in `folder`; take it down at the end.

    Raises:
        StoreError: At the end, a worker has been writing for a minute and has not finished.
    """
    name = f"run-{secrets.token_hex(8)}.tmp"
    Marks(folder).create(name)
    fence: Fence = _ObjectFence(folder / name) if isinstance(folder, ObjectPath) else FileFence(folder / name)
    try:
        yield fence
    finally:
        fence.take_down()


class _ObjectFence:
    """A fence whose marker is an object."""

    def __init__(self, mark: ObjectPath) -> None:
        self._mark = mark

    @contextmanager
    def held(self) -> Iterator[None]:
        """Check for the marker, and run the block."""
        if not self._mark.is_file():
            raise _is_down(self._mark)
        yield

    def take_down(self) -> None:
        """Remove the marker."""
        self._mark.unlink()


class FileFence:
    """A fence whose marker is a file.

    Raises:
        RunError: From each method: the fence is down, or the system refused.
    """

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the fence up during the block."""
        with files.write_errors(self._mark):
            try:
                fd = lock(self._mark, os.O_RDWR, SHARED)
            except FileNotFoundError:
                raise _is_down(self._mark) from None
        try:
            yield
        finally:
            os.close(fd)

    def take_down(self) -> None:
        """Wait until no worker writes, and let none write from then on.

        Raises:
            StoreError: A worker has been writing for a minute and has not finished.
        """
        with files.write_errors(self._mark), suppress(FileNotFoundError):
            fd = self._locked()
            try:
                self._mark.unlink()
            finally:
                os.close(fd)

    def _locked(self) -> int:
        deadline = time.monotonic() + _WAIT_S
        while True:
            with suppress(BlockingIOError):
                return lock(self._mark, os.O_RDWR)
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{self._mark}: a worker of an earlier run on Ray holds it and writes; end its Ray job, then run "
                    "the same command again"
                )
            time.sleep(_POLL_S)


def _is_down(mark: AnyPath) -> RunError:
    return RunError(
        f"{mark}: not there on {socket.gethostname()}: its run has ended, or this machine does not see the store; the "
        "output must be in an object store or on a file system that all machines share"
    )


@files.os_errors(StoreError)
def end_earlier_runs(root: AnyPath) -> None:
    """Take down the fences that killed runs left in a folder, so that none of their workers writes from then on.

    In an object store, opening the store for writing removes them.

    Raises:
        StoreError: A run is still writing the store, or one of its workers does not finish.
        RunError: The system refused.
    """
    if isinstance(root, ObjectPath) or not os.path.lexists(root):
        return
    folder = root / layout.TMP
    with files.write_errors(folder):
        if root.is_symlink() or folder.is_symlink() or not any(folder.glob(_PATTERN)):
            return
        lock = StoreLock(root)
        try:
            for mark in sorted(folder.glob(_PATTERN)):
                FileFence(mark).take_down()
        finally:
            lock.release()
