"""The protocol between runners and work: three stages per shard, and a task per worker."""

from __future__ import annotations

from typing import Protocol, TypeVar

from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardResult, ShardSpec

PreparedT = TypeVar("PreparedT")

_GPU_WRITERS = 4


def writers_for(device_kind: str) -> int:
    """Return how many shards are committed at once: a GPU is done with one sooner than one thread has written it."""
    return _GPU_WRITERS if device_kind == "cuda" else 1


def shards_in_hand(n_writers: int) -> int:
    """Return how many shards keep a worker busy: one being read, one being encoded, and those being written."""
    return 2 + n_writers


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
