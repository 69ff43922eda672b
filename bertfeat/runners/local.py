"""Runner of shards in one process: one is encoded while the next is tokenized and earlier ones are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.task import PreparedT, Task


def run_overlapped(task: Task[PreparedT], shards: Iterable[ShardSpec], progress: Progress) -> Iterator[Receipt]:
    """Run shards through three stages that overlap; yield each receipt when its shard is durable.

    At most one shard waits for the encoder and `task.n_writers` are being written, so memory holds at most two shards
    and those.
    """
    following = iter(shards)
    n_writers = task.n_writers
    with ThreadPoolExecutor(1, "prepare") as reader, ThreadPoolExecutor(n_writers, "commit") as writers:

        def take() -> tuple[ShardSpec, PreparedT] | None:
            shard = next(following, None)
            return None if shard is None else (shard, task.prepare(shard))

        upcoming = reader.submit(take)
        committing: deque[Future[Receipt]] = deque()
        while True:
            # The next shard may take long; a receipt must not wait for it.
            futures: list[Future[Any]] = [upcoming, *committing]
            wait(futures, return_when=FIRST_COMPLETED)
            if any(future.done() for future in committing):
                yield _first_done(committing)
                continue
            taken = upcoming.result()
            if taken is None:
                break
            upcoming = reader.submit(take)
            shard, prepared = taken
            del taken
            result = task.encode(prepared, partial(progress.encoded, shard.index))
            del prepared
            if len(committing) == n_writers:
                wait(committing, return_when=FIRST_COMPLETED)
                yield _first_done(committing)
            committing.append(writers.submit(task.commit, shard, result))
            del result
        while committing:
            wait(committing, return_when=FIRST_COMPLETED)
            yield _first_done(committing)


def _first_done(committing: deque[Future[Receipt]]) -> Receipt:
    done = next(future for future in committing if future.done())
    committing.remove(done)
    return done.result()
