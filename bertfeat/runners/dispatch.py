"""Choice of a runner."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from bertfeat.progress import Progress
from bertfeat.records import ShardSpec
from bertfeat.runners.overlap import run_overlapped
from bertfeat.runners.pool import Pool
from bertfeat.runners.processes import ProcessWorker
from bertfeat.runners.ray import OnRay, run_on_ray
from bertfeat.runners.task import MakeTask, PreparedT


def run_shards(
    make_task: MakeTask[PreparedT], shards: Sequence[ShardSpec], workers: int | OnRay, progress: Progress
) -> None:
    """Run shards in this process, in several processes of this machine (`workers` of them), or on Ray.

    Raises:
        BertfeatError: A stage raised this error on purpose; the run ends at once.
        RunError: Shards failed twice in a worker process or an actor and all others are done; or workers do not start.
    """
    if not shards:
        return
    if isinstance(workers, OnRay):
        receipts = run_on_ray(make_task, shards, workers, progress)
    else:
        progress.stage("loading the model")
        n_workers = min(workers, len(shards))
        if n_workers == 1:
            task = make_task(0, 1)
            progress.stage("tokenizing")
            receipts = run_overlapped(task, shards, progress)
        else:
            pool = Pool(lambda number: ProcessWorker(make_task, number, n_workers), n_workers, progress)
            receipts = pool.run(shards)
    # Closed at once if `progress` raises, so that no worker writes after the store's lock is released.
    with closing(receipts):
        for receipt in receipts:
            progress.committed(receipt)
