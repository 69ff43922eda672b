"""The three stages of shards, overlapped: one is encoded while the next is prepared and earlier ones are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from queue import SimpleQueue
from typing import Any

from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.task import PreparedT, Task, shards_in_hand


def run_overlapped(task: Task[PreparedT], shards: Iterable[ShardSpec], progress: Progress) -> Generator[Receipt]:
    """Run shards, in order, through the stages of a task; yield each receipt when its shard is durable.

    Memory holds at most `shards_in_hand` shards. The calling thread encodes: on a CPU, each thread that does so has
    worker threads and kernels of its own.
    """
    following = iter(shards)
    reader = ThreadPoolExecutor(1, "prepare")
    with ThreadPoolExecutor(task.n_writers, "commit") as writers:

        def take() -> tuple[ShardSpec, PreparedT] | None:
            shard = next(following, None)
            return None if shard is None else (shard, task.prepare(shard))

        try:
            upcoming = reader.submit(take)
            committing: set[Future[Receipt]] = set()
            while True:
                # The next shard may take long; a receipt must not wait for it.
                futures: set[Future[Any]] = {upcoming, *committing}
                yield from _finished(committing, wait(futures, return_when=FIRST_COMPLETED).done)
                if not upcoming.done():
                    continue
                taken = upcoming.result()
                if taken is None:
                    break
                upcoming = reader.submit(take)
                shard, prepared = taken
                del taken
                result = task.encode(prepared, partial(progress.encoded, shard.index))
                del prepared
                if len(committing) == task.n_writers:
                    yield from _finished(committing, wait(committing, return_when=FIRST_COMPLETED).done)
                committing.add(writers.submit(task.commit, shard, result))
                del result
            while committing:
                yield from _finished(committing, wait(committing, return_when=FIRST_COMPLETED).done)
        finally:
            # It may wait for a shard that never comes.
            reader.shutdown(wait=False)


def _finished(committing: set[Future[Receipt]], done: set[Future[Any]]) -> Iterator[Receipt]:
    for future in committing & done:
        committing.remove(future)
        yield future.result()


class TaskThread:
    """Thread of a worker that makes a task and runs the shards given to it; an error ends it and fails all of them.

    `ready` holds, once the task is made, the number of shards that keep the worker busy.
    """

    def __init__(self, make: Callable[[], Task[Any]]) -> None:
        """Start the thread, which calls `make`."""
        self.ready: Future[int] = Future()
        self._receipts: dict[int, Future[Receipt]] = {}
        self._shards: SimpleQueue[ShardSpec] = SimpleQueue()
        threading.Thread(target=self._run, args=(make,), daemon=True).start()

    def submit(self, shard: ShardSpec) -> Future[Receipt]:
        """Run a shard after those that were submitted before."""
        receipt = self._receipts[shard.index] = Future()
        self._shards.put(shard)
        return receipt

    def _run(self, make: Callable[[], Task[Any]]) -> None:
        try:
            task = make()
            self.ready.set_result(shards_in_hand(task.n_writers))
            for receipt in run_overlapped(task, iter(self._shards.get, None), Progress()):
                self._receipts.pop(receipt.shard).set_result(receipt)
        except BaseException as error:  # whoever waits must receive every error
            futures: list[Future[Any]] = [self.ready, *self._receipts.values()]
            for future in futures:
                if not future.done():
                    future.set_exception(error)
