"""A task without work, for what a runner costs by itself."""

from __future__ import annotations

from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardResult, ShardSpec


class EmptyTask:
    """Does nothing with a shard but to say that it is done."""

    def __init__(self, worker: int, n_workers: int) -> None:
        """Load nothing."""
        del worker, n_workers

    def prepare(self, shard: ShardSpec) -> ShardSpec:
        """Read nothing."""
        return shard

    def encode(self, prepared: ShardSpec, progress: Progress) -> ShardResult:
        """Compute nothing."""
        del prepared, progress
        return ShardResult({}, (), {}, {})

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Write nothing."""
        del result
        return Receipt(shard.index, "", (), 0, {}, {}, "")
