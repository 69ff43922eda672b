"""Talks to a process that may crash, hang or lie: every message has a deadline, and its end says why it ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

_CHILD = Path(__file__).resolve().with_name("sandbox_child.py")
_PACKAGES = _CHILD.parents[2]
_MAX_HEADER_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Where a system keeps libraries in places of its own, NumPy and faiss are not found without these.
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class ProcessFailed(Exception):
    """The process crashed, gave no answer in time, or a garbled one; it has been ended. Says which."""


class SandboxProcess:
    """A process that runs `sandbox_child.py`; killed by `end`, by a failure, or with this object.

    It gets no environment, no open file but its pipes, and one thread.

    Args:
        settings: What it is told: JSON values.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        # Where this package lies comes last: nothing else that lies there may stand in for a library.
        paths = [*(folder for folder in sys.path if Path(folder).is_absolute()), str(_PACKAGES)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_CHILD), json.dumps({**settings, "import_path": paths})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env={**_ENVIRONMENT, **{name: os.environ[name] for name in _KEPT if name in os.environ}},
            # A Ctrl-C is for this process, which ends the other one.
            start_new_session=True,
        )
        self.end = weakref.finalize(self, _end, self._process)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)

    @property
    def process_id(self) -> int:
        """The system's number of the process."""
        return self._process.pid

    def send(self, header: Mapping[str, Any], *arrays: bytes | memoryview, deadline: float) -> None:
        """Send a message.

        Args:
            header: JSON values, which say how long the arrays are.
            arrays: What follows.
            deadline: When, on the clock of `time.monotonic`, it must have been taken.

        Raises:
            ProcessFailed: It was not.
        """
        text = json.dumps(dict(header)).encode()
        for data in (struct.pack("<I", len(text)) + text, *arrays):
            rest = memoryview(data).cast("B")
            while rest:
                self._wait(self._in, selectors.EVENT_WRITE, deadline)
                try:
                    rest = rest[os.write(self._in, rest[:_PIPE_BYTES]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    self._fail(self._how_it_ended())

    def receive_header(self, deadline: float) -> dict[str, Any]:
        """Receive the JSON object that a message begins with.

        Raises:
            ProcessFailed: There is none, or it is something else.
        """
        n_bytes = struct.unpack("<I", self.receive(4, deadline))[0]
        if n_bytes > _MAX_HEADER_BYTES:
            self._fail("gave a garbled answer")
        try:
            header = json.loads(self.receive(n_bytes, deadline))
        except (ValueError, RecursionError):
            self._fail("gave a garbled answer")
        if not isinstance(header, dict):
            self._fail("gave a garbled answer")
        return header

    def receive(self, n_bytes: int, deadline: float) -> bytearray:
        """Receive so many bytes.

        Raises:
            ProcessFailed: There are fewer.
        """
        out = bytearray(n_bytes)
        rest = memoryview(out)
        while rest:
            self._wait(self._out, selectors.EVENT_READ, deadline)
            try:
                n_read = os.readv(self._out, [rest[:_PIPE_BYTES]])
            except BlockingIOError:
                continue
            if not n_read:
                self._fail(self._how_it_ended())
            rest = rest[n_read:]
        return out

    def _wait(self, fd: int, event: int, deadline: float) -> None:
        if not self.end.alive:
            raise ProcessFailed("has ended")
        with selectors.DefaultSelector() as selector:
            selector.register(fd, event)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                self._fail("gave no answer in time")

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.poll()
        if code is None or code >= 0:
            return "ended before it had answered"
        if code == -signal.SIGXCPU:
            return "computed for longer than it may"
        return f"crashed ({signal.Signals(-code).name})"

    def _fail(self, reason: str) -> NoReturn:
        self.end()
        raise ProcessFailed(reason)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
