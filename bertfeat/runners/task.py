"""What a runner needs to know of the work: three stages a shard, and how a worker makes its task."""

from __future__ import annotations

from typing import Protocol, TypeVar

from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardResult, ShardSpec

PreparedT = TypeVar("PreparedT")


class Task(Protocol[PreparedT]):
    """The work on a shard, with whatever a worker loads once.

    Attributes:
        n_writers: Shards that are committed at once.
    """

    n_writers: int

    def prepare(self, shard: ShardSpec) -> PreparedT:
        """Read and tokenize; runs in a thread beside `encode`."""

    def encode(self, prepared: PreparedT, progress: Progress) -> ShardResult:
        """Run the encoder."""

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Write; runs in a thread beside `encode`."""


class MakeTask(Protocol[PreparedT]):
    """Makes a worker's task, in the worker; it must pickle."""

    def __call__(self, worker: int, n_workers: int) -> Task[PreparedT]:
        """Load what the worker `worker` of `n_workers` on this machine needs."""
