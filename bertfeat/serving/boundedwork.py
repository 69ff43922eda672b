"""Threads that answer searches: a bounded number at work, a bounded number waiting, and a time limit for each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bertfeat.errors import BertfeatError

_Result = TypeVar("_Result")


class Busy(BertfeatError):
    """The server has too much to do, or a search took too long; the same request may succeed later."""


class BoundedWork:
    """A pool of threads that refuses work beyond its bounds.

    A thread cannot be stopped: a search that takes too long is answered with an error, and keeps its thread and its
    place until it ends.

    Args:
        n_threads: Searches at once.
        max_waiting: Further ones that wait for a thread.
        timeout_s: Seconds until an answer, with the wait.
    """

    def __init__(self, n_threads: int, max_waiting: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="search")
        self._places = threading.BoundedSemaphore(n_threads + max_waiting)

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """Run work in a thread and return its result.

        Raises:
            Busy: All places are taken, or the time is over.
        """
        if not self._places.acquire(blocking=False):
            raise Busy("too many searches at once; try again")
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._places.release())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError:
            if future.done() and not future.cancelled():
                # The work itself raised it.
                raise
            raise Busy(f"no answer within {self._timeout_s:g} seconds; try again, or search for less") from None

    def close(self) -> None:
        """Forget what waits; what runs is not waited for here."""
        self._pool.shutdown(wait=False, cancel_futures=True)
