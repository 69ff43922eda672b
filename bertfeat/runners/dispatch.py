"""Choice of a runner."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import cast

from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.local import run_overlapped
from bertfeat.runners.processes import ProcessPool
from bertfeat.runners.ray import OnRay, run_on_ray
from bertfeat.runners.task import MakeTask, PreparedT


def run_shards(
    make_task: MakeTask[PreparedT],
    shards: Sequence[ShardSpec],
    workers: int | OnRay,
    progress: Progress,
) -> None:
    """Run shards in this process, in several, or on Ray.

    Args:
        make_task: Makes a worker's task.
        shards: The shards to run.
        workers: The number of processes on this machine, or the place on Ray.
        progress: Receives tokens and receipts.

    Raises:
        BertfeatError: A stage raised this error on purpose.
        RunError: A shard failed three times.
    """
    if not shards:
        return
    # Closed at once if `progress` raises, so that no worker writes after the store's lock is released.
    with closing(cast("Generator[Receipt]", _receipts(make_task, shards, workers, progress))) as receipts:
        for receipt in receipts:
            progress.committed(receipt)


def _receipts(
    make_task: MakeTask[PreparedT], shards: Sequence[ShardSpec], workers: int | OnRay, progress: Progress
) -> Iterator[Receipt]:
    if isinstance(workers, OnRay):
        return run_on_ray(make_task, shards, workers, progress)
    progress.stage("loading the model")
    n_workers = min(workers, len(shards))
    if n_workers == 1:
        return run_overlapped(make_task(0, 1), shards, progress)
    return ProcessPool(make_task, shards, n_workers, progress).run()
