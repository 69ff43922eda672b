"""Lock of a store in an object store: one writer per store, without a kernel lock.

Locks are objects `_bertfeat/locks/NNNNN.json`. Each is created by a request that the store refuses if the number
exists. A writer reads all locks and, if none of their owners is alive, creates the next number, so only one of several
writers that find the same dead lock gets the next one. Numbers only grow: a released lock stays, marked as released,
until the next owner removes it.

An owner on this machine is alive while its process is. An owner on another machine rewrites its lock every `BEAT_S`
seconds, and counts as dead if it has not done so for `LEASE_S` seconds by the store's clock.

An owner may also be suspended (a closed laptop, a paused machine) and continue when another run owns the store. So the
owner and its workers check the locks before each upload and removal. The owner stops one beat before its lease ends by
its own clock, which counts the time asleep. A suspension between the check and the upload remains:

- A part is uploaded in pieces, and the check comes right before the request that makes it visible. A new owner ends all
  unfinished uploads, so that this request fails however late it arrives. Where the store does not list its uploads
  (gs://, some servers that speak S3, a user without that right), only the check protects a part.
- A small file is one request, and can still arrive late. Receipts, set-aside rows and the manifest must be new, so they
  replace nothing of the new owner's. A file of a shard that the new plan does not have is left over: readers ignore
  it, `verify` reports it, and the next run removes it.
- A plan or a receipt that is rewritten can replace the new owner's. Then the new owner's run, or `verify`, reports it,
  and running the command again repairs it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bertfeat.errors import RunError, StorageError, StoreError
from bertfeat.storage import ObjectInfo, ObjectPath
from bertfeat.store import layout

BEAT_S = 20.0
LEASE_S = 120.0
_MAX_TRIES = 20
# A clock that counts the time asleep: CLOCK_MONOTONIC does so on macOS, but not on Linux.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# The locks that this process holds. A lock that it could not release counts as released.
_HELD: set[str] = set()


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a store, for worker processes: valid while the lock of this number is the newest."""

    root: ObjectPath
    number: int

    def check(self) -> None:
        """Check that no other process has taken the store over.

        Raises:
            RunError: Another process has taken it over.
        """
        asked_at = seconds()
        newest = max(_locks(self.root), default=0)
        if newest == self.number and seconds() - asked_at > BEAT_S:
            # This process may have been stopped before it read the answer.
            self.check()
        elif newest != self.number:
            raise RunError(
                f"{self.root}: another run has taken this store over, because this run did not renew its lock for "
                f"{LEASE_S:.0f} s; wait for the other run, then run the same command again"
            )


class ObjectLock:
    """The lock on a store in an object store, held from construction until `release`.

    Each lock is created a second time, with other content, to check that the store refuses it.

    Raises:
        StoreError: Another process holds it; the message has its id and host.
        StorageError: The store cannot be used, or does not refuse to create an object that exists.
        RunError: A request failed.
    """

    def __init__(self, root: ObjectPath) -> None:
        self._root = root
        self._renewed_at = seconds()
        self._number = self._acquire()
        _HELD.add(self._owner["token"])
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._beating.start()

    def __reduce__(self) -> tuple[type[Lease], tuple[ObjectPath, int]]:
        """Pickle as a lease: a worker process cannot know when the owner last renewed its lock."""
        return Lease, (self._root, self._number)

    def check(self) -> None:
        """Check that no other process has taken the store over, and that none can do so in the next seconds.

        Raises:
            RunError: Another process has, or may have: this process could not renew its lock for too long.
        """
        Lease(self._root, self._number).check()
        unseen_s = seconds() - self._renewed_at
        if _is_over(unseen_s):
            raise RunError(
                f"{self._root}: this run was stopped, or did not reach the store, for {unseen_s:.0f} s, and another "
                "one may write the store now; run the same command again"
            )

    def release(self) -> None:
        """Let another process write now or, if the store cannot be reached, after the lease."""
        if self._stop():
            with contextlib.suppress(RunError, StorageError):
                Lease(self._root, self._number).check()
                self._path(self._number).write_bytes(json.dumps({**self._owner, "released": True}).encode())

    def discard(self) -> None:
        """Remove the lock together with the store."""
        if self._stop():
            self._path(self._number).unlink()

    def _stop(self) -> bool:
        """End the heartbeat; return whether it was still running."""
        if self._ended.is_set():
            return False
        self._ended.set()
        self._beating.join()
        _HELD.discard(self._owner["token"])
        return True

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            # Taken before the request, so that a suspension during the request counts as part of the lease.
            now = seconds()
            if _is_over(now - self._renewed_at):
                return
            # Ignore errors here: whatever blocks the heartbeat also blocks part uploads, which report it.
            with contextlib.suppress(RunError, StorageError):
                self._path(self._number).write_bytes(json.dumps(self._owner).encode())
                self._renewed_at = now

    def _acquire(self) -> int:
        self._owner = {"token": secrets.token_hex(8), **this_process(), "released": False}
        for _ in range(_MAX_TRIES):
            locks = _locks(self._root)
            # A process on this machine can be checked without creating a lock first.
            self._refuse_living({number: info for number, info in locks.items() if self._is_here(number)}, None)
            mine = max(locks, default=0) + 1
            self._renewed_at = seconds()
            now = self._create(mine)
            if now is None:
                continue
            others = {number: info for number, info in _locks(self._root).items() if number != mine}
            try:
                self._refuse_living(others, now)
            except BaseException:
                self._path(mine).unlink()
                raise
            for number in others:
                self._path(number).unlink()
            return mine
        raise StoreError(f"{self._root}: several processes try to write this store; start only one of them")

    def _create(self, number: int) -> datetime | None:
        """Create a lock and return the store's time; None if another process was faster."""
        path = self._path(number)
        try:
            path.create_bytes(json.dumps(self._owner).encode())
        except FileExistsError:
            return None
        except RunError as error:
            # "A header you provided implies functionality that is not implemented."
            if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSYS:
                raise self._not_exclusive() from error
            raise
        try:
            path.create_bytes(json.dumps({**self._owner, "again": True}).encode())
        except FileExistsError:
            return path.info().modified
        except BaseException:
            path.unlink()
            raise
        path.unlink()
        raise self._not_exclusive()

    def _not_exclusive(self) -> StorageError:
        return StorageError(
            f"{self._root}: this object store does not refuse to create an object that is there (If-None-Match), so "
            "two runs could write one store; write to a store that refuses this, or to a folder"
        )

    def _refuse_living(self, locks: dict[int, ObjectInfo], now: datetime | None) -> None:
        for number, info in locks.items():
            owner = self._read(number)
            if owner is None or owner.get("released") is True:
                continue
            process = f"process {owner.get('pid', '(unknown)')} on host {owner.get('host', '(unknown)')}"
            if is_here(owner):
                if is_running(owner) and (owner["pid"] != os.getpid() or owner.get("token") in _HELD):
                    raise StoreError(f"{self._root}: {process} is writing this store; wait for it or stop it")
                continue
            unseen_s = 0.0 if now is None else (now - info.modified).total_seconds()
            if unseen_s < LEASE_S:
                raise StoreError(
                    f"{self._root}: {process} is writing this store, seen {max(unseen_s, 0):.0f} s ago; wait for it or "
                    f"stop it (if it has died, its lock ends {LEASE_S:.0f} s after it was last seen)"
                )

    def _is_here(self, number: int) -> bool:
        owner = self._read(number)
        return owner is not None and is_here(owner)

    def _read(self, number: int) -> dict[str, Any] | None:
        """Return a lock's description of its owner: empty if the lock is damaged, None if it is gone."""
        try:
            owner = json.loads(self._path(number).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return owner if isinstance(owner, dict) else {}

    def _path(self, number: int) -> ObjectPath:
        return self._root / f"{layout.LOCKS}/{number:05d}.json"


def seconds() -> float:
    """Return the seconds since a fixed moment; the time that the machine slept counts."""
    return time.clock_gettime(_CLOCK)


def _is_over(unseen_s: float) -> bool:
    # One beat less than others wait: an upload that begins now has that long to arrive.
    return unseen_s > LEASE_S - BEAT_S


def _locks(root: ObjectPath) -> dict[int, ObjectInfo]:
    found = (root / layout.LOCKS).find()
    return {int(name[:-5]): info for name, info in found.items() if layout.is_piece(f"{layout.LOCKS}/{name}")}


def this_process() -> dict[str, Any]:
    """Describe this process so that another on this machine can tell whether it still runs."""
    return {"pid": os.getpid(), "host": socket.gethostname(), **_machine(), "started": _started(os.getpid())}


def is_here(owner: dict[str, Any]) -> bool:
    """Return whether a process is on this machine, since its last boot, and in this container."""
    here = {"host": socket.gethostname(), **_machine()}
    return {name: owner.get(name) for name in here} == here


def is_running(owner: dict[str, Any]) -> bool:
    """Return whether a process of this machine still runs, and is not a later one with the same number."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return owner.get("started") == _started(pid)


def _machine() -> dict[str, str]:
    """Return the ids of the machine's boot and of the container's process numbers, as far as known."""
    boot = pids = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        pids = str(Path("/proc/self/ns/pid").readlink())
    return {"boot": boot, "pids": pids}


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty if it is dead, or without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
