"""Threads that answer searches: a bounded number at work, a bounded number waiting, and a time limit for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from bertfeat.errors import BertfeatError

_Result = TypeVar("_Result")


class Busy(BertfeatError):
    """The server has too much to do, or a search took too long; the same request may succeed later."""


class BoundedWork:
    """A pool of threads that refuses work beyond its bounds.

    A thread cannot be stopped: a search that takes too long is answered with an error, and keeps its thread until it
    ends. While all threads are kept so, further work is refused at once.

    Args:
        n_threads: Searches at once.
        max_waiting: Further ones that wait for a thread.
        timeout_s: Seconds until an answer, with the wait.
    """

    def __init__(self, n_threads: int, max_waiting: int, timeout_s: float) -> None:
        self._n_threads, self._max_works, self._timeout_s = n_threads, n_threads + max_waiting, timeout_s
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="search")
        # The deadline of each task.
        self._deadlines: dict[Future[Any], float] = {}

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Run work in a thread and return its result; to be called from one event loop.

        Raises:
            Busy: All places are taken, or the time is over.
        """
        now = time.monotonic()
        deadlines = list(self._deadlines.values())
        # Tasks that wait are cancelled at their deadline, so late ones are running.
        n_late = sum(deadline < now for deadline in deadlines)
        if len(deadlines) >= self._max_works or n_late >= self._n_threads:
            raise Busy("too many searches at once; try again")
        future = self._pool.submit(work)
        self._deadlines[future] = now + self._timeout_s
        future.add_done_callback(lambda ended: self._deadlines.pop(ended, None))
        answer = asyncio.wrap_future(future)
        await asyncio.wait([answer], timeout=self._timeout_s)
        if answer.done():
            return answer.result()
        # Cancels the task if it is still waiting.
        answer.cancel()
        raise Busy(f"no answer within {self._timeout_s:g} seconds; try again, or search for less")

    def close(self) -> bool:
        """Cancel what waits; return whether all has ended, or a thread is still at work."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return not self._deadlines
