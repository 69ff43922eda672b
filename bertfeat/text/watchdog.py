"""Watchdog for calls into the tokenizers library, which cannot be interrupted and may panic."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_stderr_lock = threading.Lock()


class CallFailed(Exception):
    """A call took too long or raised; the message is what "it" did."""


def call_within(call: Callable[[], T], timeout_s: float) -> T:
    """Run `call` in a separate thread and return its result.

    The limit holds for both the clock and the CPU time of this process, because a process that was stopped, or that
    gets little time on a busy machine, has computed less than its clock says. A call over the limit is not stopped; its
    thread runs until the process ends.

    Raises:
        CallFailed: The call took longer than `timeout_s`, or raised, a Rust panic included.
        MemoryError: The call raised it.
    """
    job: _Job[T] = _Job(call)
    used = time.process_time()
    try:
        jobs = _idle.pop()
    except IndexError:
        jobs = queue.SimpleQueue()
        threading.Thread(target=_work, args=(jobs,), name="tokenize", daemon=True).start()
    jobs.put(job)
    step_s = timeout_s
    while not job.done.wait(step_s):
        if time.process_time() - used > timeout_s:
            raise CallFailed(f"took more than {timeout_s:.0f} s")
        step_s = 1.0
    _idle.append(jobs)
    if job.error is None:
        return job.results[0]
    if isinstance(job.error, MemoryError):
        raise job.error
    raise CallFailed("failed: " + (str(job.error).strip() or type(job.error).__name__).splitlines()[0])


class _Job(Generic[T]):
    """A call and what came of it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.results: list[T] = []
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        """Make the call and keep its result or its error."""
        try:
            self.results.append(self.call())
        except BaseException as error:  # a Rust panic is not an Exception
            self.error = error
        self.done.set()


def _work(jobs: queue.SimpleQueue[_Job[Any]]) -> None:
    while True:
        jobs.get().run()


# The queues of threads that wait for a call. A new thread per call would use a new memory pool each time.
_idle: list[queue.SimpleQueue[_Job[Any]]] = []
os.register_at_fork(after_in_child=_idle.clear)


@contextmanager
def held_stderr() -> Iterator[None]:
    """Hold what is written to standard error, and drop it if `CallFailed` is raised: Rust writes its panics there.

    This affects the whole process, so it is used only for tokenizers that are likely to panic.
    """
    with _stderr_lock, tempfile.TemporaryFile() as held:
        try:
            own = os.dup(2)
        except OSError:  # it is closed
            yield
            return
        os.dup2(held.fileno(), 2)
        try:
            yield
        except CallFailed:
            held.truncate(0)
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)
            held.seek(0)
            os.write(2, held.read())
