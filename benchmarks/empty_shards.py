"""A task without work, to measure the cost of a runner alone."""

from __future__ import annotations

from bertfeat.progress import Report
from bertfeat.records import Receipt, ShardResult, ShardSpec


class EmptyTask:
    """A task that does nothing with a shard and reports it as done."""

    n_writers = 1

    def __init__(self, worker: int, n_workers: int) -> None:
        """Load nothing."""
        del worker, n_workers

    def prepare(self, shard: ShardSpec) -> ShardSpec:
        """Read nothing."""
        return shard

    def encode(self, prepared: ShardSpec, report: Report) -> ShardResult:
        """Compute nothing."""
        del prepared, report
        return ShardResult({}, (), {}, {})

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Write nothing."""
        del result
        return Receipt(shard.index, "", (), 0, {}, None)
