"""A run on Ray, or in this process, that writes a store of synthetic results: a real run without a model.

`python -m tests.support.ray_stores ADDRESS OUTPUT`
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from bertfeat.choices import Level
from bertfeat.errors import BertfeatError
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardResult, ShardSpec
from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.ray import OnRay
from bertfeat.storage import as_path
from bertfeat.store.commit import commit_shard
from bertfeat.store.writer import open_for_writing
from tests.support.store_fakes import make_plan, make_result

PLAN = make_plan((3,) * 30, levels=(Level.TOKEN, Level.SENTENCE), combine="none")


class CommitTask:
    """A task with known results that takes some time."""

    n_writers = 1

    def __init__(self, root: Any, worker: int, n_workers: int) -> None:
        self._root = root

    def prepare(self, shard: ShardSpec) -> ShardSpec:
        time.sleep(0.05)
        return shard

    def encode(self, prepared: ShardSpec, report: Any) -> ShardResult:
        return make_result(PLAN, prepared, n_bad=1)

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        return commit_shard(self._root, PLAN, shard, result)


def run(output: str | Path, address: str | None = None) -> None:
    """Make the store; without an address, in this process."""
    root = as_path(output)
    with open_for_writing(root, PLAN) as writer:
        if not writer.is_complete:
            workers = 1 if address is None else OnRay(address, 2, False)
            run_shards(partial(CommitTask, root), writer.pending(), workers, Progress())
            writer.complete()


def main() -> None:
    # Workers import the task from here by name.
    from tests.support.ray_stores import run as run_as_module

    try:
        run_as_module(sys.argv[2], sys.argv[1])
    except BertfeatError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
