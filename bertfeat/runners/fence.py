"""A fence around a run: workers on other machines write only while it is up; taking it down waits for them.

A worker in the run's own process tree dies with the run. One on another machine may not hear for a while that the run
was killed, and must not write on into a store that the next run has opened. So it commits under a shared lock on the
run's mark, a file in the store: the next run takes that lock for itself alone, then removes the mark.

In an object store nothing can be locked. There a worker looks for the mark before it begins and before it commits; one
that is in the middle of a commit when the mark goes can but create what is not there, and of the same plan that is the
same part.
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
from bertfeat.runners.marks import marks_in
from bertfeat.storage import AnyPath, ObjectPath
from bertfeat.store import layout
from bertfeat.store.lock import StoreLock

_PATTERN = "run-*.tmp"
_WAIT_S = 60.0
_POLL_S = 0.05


class Fence(Protocol):
    """The fence of one run; it pickles, and a worker uses a copy."""

    def held(self) -> AbstractContextManager[None]:
        """Keep the fence up for a block, as far as that can be; raise RunError when it is down."""

    def take_down(self) -> None:
        """Let no worker write from then on."""


@contextmanager
def fence_around(folder: AnyPath) -> Iterator[Fence]:
    """Put up a fence whose mark is a new file in `folder`, or a new object; take it down at the end.

    Raises:
        StoreError: At the end: a worker has been writing for a minute, and writes still.
    """
    name = f"run-{secrets.token_hex(8)}.tmp"
    marks_in(folder).create(name)
    fence: Fence = _ObjectFence(folder / name) if isinstance(folder, ObjectPath) else FileFence(folder / name)
    try:
        yield fence
    finally:
        fence.take_down()


class _ObjectFence:
    """A fence whose mark is an object."""

    def __init__(self, mark: ObjectPath) -> None:
        """Take the fence whose mark is this object."""
        self._mark = mark

    @contextmanager
    def held(self) -> Iterator[None]:
        """Look for the mark, and run the block.

        Raises:
            RunError: The fence is down.
        """
        if not self._mark.is_file():
            raise _is_down(self._mark)
        yield

    def take_down(self) -> None:
        """Remove the mark."""
        self._mark.unlink()


class FileFence:
    """A fence whose mark is a file."""

    def __init__(self, mark: Path) -> None:
        """Take the fence whose mark is this file."""
        self._mark = mark

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the fence up for the block.

        Raises:
            RunError: The fence is down, or the system refused.
        """
        with self._errors():
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
            StoreError: A worker has been writing for a minute, and writes still.
            RunError: The system refused.
        """
        with self._errors(), suppress(FileNotFoundError):
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

    def _errors(self) -> AbstractContextManager[None]:
        return files.write_errors(self._mark)


def _is_down(mark: AnyPath) -> RunError:
    return RunError(
        f"{mark}: not there on {socket.gethostname()}: its run has ended, or this machine does not see the store; the "
        "output must lie in an object store or on a file system that all machines share"
    )


@files.os_errors(StoreError)
def end_earlier_runs(root: AnyPath) -> None:
    """Take down the fences that killed runs left in a folder, so that no worker of theirs writes from then on.

    In an object store they go when the store is opened for writing.

    Raises:
        StoreError: A run is still at work on the store, or a worker does not come to an end.
        RunError: The system refused.
    """
    if isinstance(root, ObjectPath):
        return
    folder = root / layout.TMP
    with files.write_errors(root / layout.TMP):
        if root.is_symlink() or folder.is_symlink() or not any(folder.glob(_PATTERN)):
            return
        lock = StoreLock(root)
        try:
            for mark in sorted(folder.glob(_PATTERN)):
                FileFence(mark).take_down()
        finally:
            lock.release()
