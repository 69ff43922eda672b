"""The choice of a runner."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import cast

from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.local import run_overlapped
from bertfeat.runners.processes import ProcessPool
from bertfeat.runners.task import MakeTask, PreparedT


def run_shards(make_task: MakeTask[PreparedT], shards: Sequence[ShardSpec], n_workers: int, progress: Progress) -> None:
    """Run shards in this process or, for several workers, in a process each; tell `progress` of each that is done.

    Raises:
        BertfeatError: What a stage raised on purpose.
        RunError: A shard failed three times.
    """
    if not shards:
        return
    n_workers = min(n_workers, len(shards))
    progress.stage("loading the model")
    if n_workers == 1:
        receipts = run_overlapped(make_task(0, 1), shards, progress)
    else:
        receipts = ProcessPool(make_task, shards, n_workers, progress).run()
    # Closed at once when `progress` raises, so that no worker writes on after the store's lock is given back.
    with closing(cast("Generator[Receipt]", receipts)):
        for receipt in receipts:
            progress.committed(receipt)
