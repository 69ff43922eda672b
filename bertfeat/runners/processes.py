"""Worker processes of this machine, each of which overlaps the stages of its shards."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any

from bertfeat import devices
from bertfeat.errors import RunError
from bertfeat.records import ShardSpec
from bertfeat.runners.overlap import TaskThread
from bertfeat.runners.pool import Failed, outcome_of
from bertfeat.runners.task import MakeTask, PreparedT

# The code of a new interpreter. It sets the parent's module search path first: bertfeat may be found only there.
_BOOT = "import json,sys; sys.path[:]=json.loads(sys.argv[2]); from bertfeat.runners.processes import main; main()"


class ProcessWorker:
    """A new process of this interpreter as a worker of a pool, and the thread that hears from it."""

    def __init__(self, make_task: MakeTask[PreparedT], number: int, n_workers: int) -> None:
        self._process, self._pipe = _start(n_workers)
        self.ready: Future[Any] = Future()
        self._futures: dict[int | None, Future[Any]] = {None: self.ready}
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._send(None, partial(make_task, number, n_workers))

    def submit(self, shard: ShardSpec) -> Future[Any]:
        """Send a shard to the process."""
        future = self._futures[shard.index] = Future()
        self._send(shard.index, shard)
        return future

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.kill()
        self._listener.join()
        self._pipe.close()

    def _send(self, index: int | None, message: object) -> None:
        # A shard over thousands of files exceeds the pipe's buffer, so the process always reads.
        try:
            self._pipe.send_bytes(pickle.dumps(message))
        except OSError:
            self._settle(index, Failed(None, "its process has ended"))

    def _settle(self, index: int | None, outcome: object) -> None:
        if future := self._futures.pop(index, None):
            future.set_result(outcome)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._settle(*self._pipe.recv())
        why = _cause(self._process.wait())
        for index in list(self._futures):
            self._settle(index, Failed(None, why))


def _cause(code: int) -> str:
    """Return why a process ended."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"killed by {name}" + (", perhaps out of memory" if name == "SIGKILL" else "")


def _start(n_workers: int) -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
    """Start a process that runs `main`; return it with our end of its pipe.

    It is not forked, because a child forked after `import pyarrow` can hang. It is not made by `multiprocessing`, whose
    children run the caller's main script again, and import modules of the current folder in place of Python's.
    """
    # Libraries that use all cores by default get the worker's share, unless the user has set a number.
    share = str(max(1, devices.n_cpus() // n_workers))
    path = json.dumps(list(map(str, sys.path)))
    try:
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Standard output is for results; libraries print to standard error.
                stdout=2,
                env={"RAYON_NUM_THREADS": share, "POLARS_MAX_THREADS": share, **os.environ},
                # The terminal's Ctrl-C reaches only the parent, which ends all workers.
                process_group=0,
            )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError(f"worker processes do not start ({reason}); pass `workers=1`") from error
    return process, ours


def main() -> None:
    """Work for the process at the other end of the pipe whose file descriptor is the first argument."""
    work(Connection(int(sys.argv[1])))


def work(pipe: Connection[Any, Any]) -> None:
    """Make a task by the first message and run the shards that follow; end when the parent is gone."""
    sending = threading.Lock()

    def report(index: int | None, future: Future[Any]) -> None:
        with sending, suppress(OSError):
            pipe.send((index, outcome_of(future)))

    with suppress(EOFError, OSError):
        make = pipe.recv_bytes()
        thread = TaskThread(lambda: pickle.loads(make)())  # noqa: PLW0108 (errors of unpickling are the thread's)
        thread.ready.add_done_callback(partial(report, None))
        while True:
            shard: ShardSpec = pipe.recv()
            thread.submit(shard).add_done_callback(partial(report, shard.index))
    # At once: the other threads may be in the middle of a shard.
    os._exit(1)
