"""Watchdog for calls into the tokenizers library, which cannot be interrupted and may panic."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_stderr_lock = threading.Lock()


class CallFailed(Exception):
    """A call took too long or raised; the message says which, as what "it" did."""


def call_within(call: Callable[[], T], timeout_s: float) -> T:
    """Run `call` in a thread of its own and return its result.

    The time has run out when both the clock and the CPU time of this process say so: a process that was stopped, or
    that gets little of a busy machine, has done less than its clock says. A call that is given up runs on until the
    process ends.

    Raises:
        CallFailed: The call took longer than `timeout_s`, or raised, a Rust panic included.
        MemoryError: The call raised it.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # a Rust panic is no Exception
            errors.append(error)
        done.set()

    used = time.process_time()
    threading.Thread(target=work, name="tokenize", daemon=True).start()
    step_s = timeout_s
    while not done.wait(step_s):
        if time.process_time() - used > timeout_s:
            raise CallFailed(f"took more than {timeout_s:.0f} s")
        step_s = 1.0
    if not errors:
        return results[0]
    if isinstance(errors[0], MemoryError):
        raise errors[0]
    raise CallFailed("failed: " + (str(errors[0]).strip() or type(errors[0]).__name__).splitlines()[0])


@contextmanager
def held_stderr() -> Iterator[None]:
    """Hold back what is written to standard error, and drop it if `CallFailed` is raised: Rust writes its panics there.

    It reaches the whole process, so it is for tokenizers alone that may well panic.
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
