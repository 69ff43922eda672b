"""Choice of a runner."""

from __future__ import annotations

from collections.abc import Generator, Sequence
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
    """Run shards in this process, in several processes of this machine (`workers` of them), or on Ray.

    Raises:
        BertfeatError: A stage raised this error on purpose.
        RunError: A shard failed three times.
    """
    if not shards:
        return
    if isinstance(workers, OnRay):
        receipts = run_on_ray(make_task, shards, workers, progress)
    else:
        progress.stage("loading the model")
        if min(workers, len(shards)) == 1:
            task = make_task(0, 1)
            progress.stage("tokenizing")
            receipts = run_overlapped(task, shards, progress)
        else:
            receipts = ProcessPool(make_task, shards, min(workers, len(shards)), progress).run()
    # Closed at once if `progress` raises, so that no worker writes after the store's lock is released.
    with closing(cast("Generator[Receipt]", receipts)) as done:
        for receipt in done:
            progress.committed(receipt)
