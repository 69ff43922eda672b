"""Runner of shards on a Ray cluster: actors load the model once, write the parts, and return receipts."""

from __future__ import annotations

import os
import pickle
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from bertfeat import devices
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.overlap import TaskThread
from bertfeat.runners.pool import Pool, outcome_of
from bertfeat.runners.ray_cluster import connection, machines_of_cluster, share_out
from bertfeat.runners.task import MakeTask, PreparedT, shards_in_hand, writers_for


@dataclass(frozen=True, slots=True)
class OnRay:
    """The place and number of the actors that run shards on Ray.

    `address` is None for a cluster started on this machine, `n_workers` None for as many as the cluster has GPUs or
    machines.
    """

    address: str | None
    n_workers: int | None
    on_gpu: bool


def run_on_ray(
    make_task: MakeTask[PreparedT], shards: Sequence[ShardSpec], place: OnRay, progress: Progress
) -> Generator[Receipt]:
    """Run shards on a Ray cluster; yield each receipt as it comes.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
        BertfeatError: A worker raised this error on purpose; the run ends at once.
        RunError: Shards failed twice and all others are done; or actors do not start; or Ray failed.
    """
    progress.stage("starting Ray" if place.address is None else f"connecting to Ray at {place.address}")
    make = pickle.dumps(make_task)
    with connection(place.address):
        n_actors, n_cpus = share_out(machines_of_cluster(), place.n_workers, on_gpu=place.on_gpu)
        progress.stage("loading the model")
        pool = Pool(lambda _: ActorWorker(make, n_cpus, on_gpu=place.on_gpu), min(n_actors, len(shards)), progress)
        with closing(pool.run(shards)) as receipts:
            yield from receipts


class ActorWorker:
    """An actor as a worker of a pool, which starts another one in place of one that died."""

    def __init__(self, make_task: bytes, n_cpus: int, *, on_gpu: bool) -> None:
        import ray

        n_at_once = shards_in_hand(writers_for("cuda" if on_gpu else "cpu"))
        settings = {"num_cpus": n_cpus, "num_gpus": int(on_gpu), "max_concurrency": n_at_once + 1, "max_restarts": 0}
        self._actor: Any = ray.remote(**settings)(ShardActor).remote(make_task, n_cpus)
        self.ready = self._actor.start.remote().future()

    def submit(self, shard: ShardSpec) -> Any:
        """Send a shard to the actor."""
        return self._actor.run.remote(shard).future()

    def close(self) -> None:
        """Kill the actor."""
        import ray

        ray.kill(self._actor)


class ShardActor:
    """The actor, which runs shards in one task; a thread of Ray waits for each."""

    def __init__(self, make_task: bytes, n_cpus: int) -> None:
        """Begin to make the task by a pickled `MakeTask`; libraries get the CPUs of the actor."""
        for variable in ("RAYON_NUM_THREADS", "POLARS_MAX_THREADS"):
            os.environ.setdefault(variable, str(n_cpus))
        self._thread = TaskThread(lambda: pickle.loads(make_task)(0, max(1, devices.n_cpus() // n_cpus)))

    def start(self) -> Any:
        """Wait until the task is made; return how many shards keep the actor busy, or `Failed`."""
        return outcome_of(self._thread.ready)

    def run(self, shard: ShardSpec) -> Any:
        """Run a shard; return its receipt, or `Failed`."""
        return outcome_of(self._thread.submit(shard))
