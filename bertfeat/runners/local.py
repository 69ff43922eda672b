"""Shards in one process: while one is encoded, the next is read and tokenized and the one before is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.task import PreparedT, Task


def run_overlapped(task: Task[PreparedT], shards: Iterable[ShardSpec], progress: Progress) -> Iterator[Receipt]:
    """Run shards through three stages that overlap; yield each receipt when its shard is safely on disk.

    At most one shard waits between two stages, so memory holds three shards whatever the corpus: one as text, one
    being encoded, one being written.
    """
    following = iter(shards)
    with ThreadPoolExecutor(1, "prepare") as reader, ThreadPoolExecutor(1, "commit") as writer:

        def take() -> tuple[ShardSpec, PreparedT] | None:
            shard = next(following, None)
            return None if shard is None else (shard, task.prepare(shard))

        upcoming = reader.submit(take)
        committing: Future[Receipt] | None = None
        while True:
            # The next shard may be long in coming; a receipt must not wait for it.
            futures: list[Future[Any]] = [upcoming] if committing is None else [upcoming, committing]
            wait(futures, return_when=FIRST_COMPLETED)
            if committing is not None and committing.done():
                yield committing.result()
                committing = None
                continue
            taken = upcoming.result()
            if taken is None:
                break
            upcoming = reader.submit(take)
            shard, prepared = taken
            del taken
            result = task.encode(prepared, progress)
            del prepared
            if committing is not None:
                yield committing.result()
            committing = writer.submit(task.commit, shard, result)
            del result
        if committing is not None:
            yield committing.result()
