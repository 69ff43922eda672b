"""Protocol between runners and their work: three stages per shard, one task per worker."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from bertfeat.progress import Report
from bertfeat.records import Receipt, ShardSpec

PreparedT = TypeVar("PreparedT")

_GPU_WRITERS = 4


def writers_for(device_kind: str) -> int:
    """Return how many shards are committed at once: a GPU computes a shard faster than one thread writes it."""
    return _GPU_WRITERS if device_kind == "cuda" else 1


def shards_in_hand(n_writers: int) -> int:
    """Return how many shards keep a worker busy: one being read, one being encoded, and those being written."""
    return 2 + n_writers


class Task(Protocol[PreparedT]):
    """The work on a shard, with everything that a worker loads once; `n_writers` shards are committed at once."""

    n_writers: int

    def prepare(self, shard: ShardSpec) -> PreparedT:
        """Read and tokenize; runs in a thread, parallel to `encode`."""

    def encode(self, prepared: PreparedT, report: Report) -> Any:
        """Run the encoder, and report how far it is; a GPU may still be copying what is returned."""

    def commit(self, shard: ShardSpec, encoded: Any) -> Receipt:
        """Write; runs in a thread, parallel to `encode`."""


class MakeTask(Protocol[PreparedT]):
    """Maker of a worker's task, called in the worker; it must pickle."""

    def __call__(self, worker: int, n_workers: int) -> Task[PreparedT]:
        """Return the task of the worker with number `worker` of `n_workers` on this machine."""
