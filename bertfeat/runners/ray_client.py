"""Runs through Ray Client, from a machine outside of the cluster: Ray Data works inside of it only.

So an actor in the cluster drives the run, and hands over one outcome after the other. It dies with the connection,
and the actors that it started die with it.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Generator

from bertfeat.errors import BertfeatError
from bertfeat.runners.worker import Done, Failed

_Outcomes = Callable[[], Generator[Done | Failed]]


class _Coordinator:
    """Drives a run where it is started."""

    def __init__(self, run: bytes) -> None:
        """Take a pickled function that runs the shards."""
        outcomes: _Outcomes = pickle.loads(run)
        self._outcomes = outcomes()

    def following(self) -> bytes | None:
        """Wait for the next outcome; return it pickled, None after the last one."""
        try:
            outcome = next(self._outcomes, None)
        except BertfeatError as error:
            outcome = Failed(None, error, traceback.format_exc(limit=-3))
        return None if outcome is None else pickle.dumps(outcome)


def is_client() -> bool:
    """Whether this process is connected through Ray Client."""
    from ray.util.client import ray as client

    return bool(client.is_connected())


def outcomes_through_client(run: _Outcomes) -> Generator[Done | Failed]:
    """Run in the cluster what would run shards here; it must pickle."""
    import ray

    coordinator = ray.remote(num_cpus=0, max_restarts=0)(_Coordinator).remote(pickle.dumps(run))
    try:
        while (outcome := ray.get(coordinator.following.remote())) is not None:
            yield pickle.loads(outcome)
    finally:
        ray.kill(coordinator)
