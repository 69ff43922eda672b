"""Runner of shards on a Ray cluster: a pool of actors takes rows of Ray Data, writes parts, and returns small rows."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from bertfeat.errors import BertfeatError, RunError
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.fence import fence_around
from bertfeat.runners.ray_actor import ActorSetup, ShardActor
from bertfeat.runners.ray_cluster import Share, connection, machines_of_cluster, share_out
from bertfeat.runners.task import MakeTask, PreparedT, shards_in_hand, writers_for
from bertfeat.runners.tries import given_up
from bertfeat.runners.worker import Done, Failed
from bertfeat.storage import AnyPath

_Outcomes = Callable[[], Generator[Done | Failed]]


@dataclass(frozen=True, slots=True)
class OnRay:
    """The place and number of the actors that run shards on Ray.

    `address` is None for a cluster started on this machine, `n_workers` None for as many as the cluster has GPUs or
    machines. `folder` holds the marker files of the run: every machine sees it, and the next run on the store empties
    it.
    """

    address: str | None
    n_workers: int | None
    on_gpu: bool
    folder: AnyPath


def run_on_ray(
    make_task: MakeTask[PreparedT], shards: Sequence[ShardSpec], place: OnRay, progress: Progress
) -> Iterator[Receipt]:
    """Run shards on a Ray cluster; yield each receipt as it comes.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
        RunError: A shard failed three times and the others are done; or actors cannot begin.
        BertfeatError: A worker raised this error on purpose; the run ends at once.
    """
    progress.stage("starting Ray" if place.address is None else f"connecting to Ray at {place.address}")
    failures: dict[int, str] = {}
    with fence_around(place.folder) as fence, connection(place.address):
        share = share_out(machines_of_cluster(), place.n_workers, on_gpu=place.on_gpu)
        share = Share(min(share.n_actors, len(shards)), share.n_cpus)
        setup = ActorSetup(make_task, place.folder, fence, share.n_cpus)
        progress.stage("loading the model")
        run = partial(_outcomes_of, setup, shards, share, on_gpu=place.on_gpu)
        with closing(_outcomes_through_client(run) if _is_client() else run()) as outcomes, _ray_errors():
            for outcome in outcomes:
                if isinstance(outcome, Done):
                    yield outcome.receipt
                else:
                    failures |= _settled(outcome)
    if failures:
        raise given_up(failures)


def _settled(outcome: Failed) -> dict[int, str]:
    """Return the reason why a shard was given up; raise an error that ends the run."""
    if outcome.error is not None:
        raise outcome.error
    if outcome.shard is None:
        raise RunError(f"actors cannot begin ({outcome.reason}); pass `runner='local'` to see more")
    return {outcome.shard: outcome.reason}


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Turn Ray's own errors into one line."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise RunError(f"Ray failed: {reason.strip()}; run the same command again to resume") from error


def _outcomes_of(
    setup: ActorSetup, shards: Sequence[ShardSpec], share: Share, *, on_gpu: bool
) -> Generator[Done | Failed]:
    """Run shards in a pool of actors of the cluster that this process belongs to; yield the outcome of each.

    Raises:
        RunError: Ray failed.
    """
    from ray.data import ActorPoolStrategy, DataContext, from_items

    # Ray Data sets its own level when it is imported.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # One row per block: a shard must not wait for others in its batch.
    rows = [{"shard": pickle.dumps(shard)} for shard in shards]
    n_at_once = shards_in_hand(writers_for("cuda" if on_gpu else "cpu"))
    with DataContext.current(_context()):
        dataset = from_items(rows, override_num_blocks=len(rows)).map_batches(
            ShardActor,
            batch_size=1,
            fn_constructor_args=(pickle.dumps(setup),),
            compute=ActorPoolStrategy(
                size=share.n_actors,
                max_tasks_in_flight_per_actor=n_at_once,
                max_concurrent_calls_per_actor=n_at_once,
                enable_true_multi_threading=True,
            ),
            num_cpus=share.n_cpus,
            num_gpus=1 if on_gpu else None,
        )
    batches = iter(dataset.iter_batches(batch_size=1, prefetch_batches=0))
    with closing(cast("Generator[Any]", batches)), _ray_errors():
        for batch in batches:
            yield pickle.loads(batch["outcome"][0])


def _context() -> Any:
    """Return Ray Data's settings: its defaults, without output, and without a time limit for a shard."""
    from ray.data import DataContext

    context = DataContext()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1
    context.issue_detectors_config.detectors = []
    context.max_errored_blocks = 0
    return context


class _Coordinator:
    """Driver of a run inside the cluster; takes a pickled function that runs the shards."""

    def __init__(self, run: bytes) -> None:
        outcomes: _Outcomes = pickle.loads(run)
        self._outcomes = outcomes()

    def following(self) -> bytes | None:
        """Wait for the next outcome and return it pickled; None after the last one."""
        try:
            outcome = next(self._outcomes, None)
        except BertfeatError as error:
            outcome = Failed(None, error, traceback.format_exc(limit=-3))
        return None if outcome is None else pickle.dumps(outcome)


def _is_client() -> bool:
    """Return whether this process is connected through Ray Client."""
    from ray.util.client import ray as client

    return bool(client.is_connected())


def _outcomes_through_client(run: _Outcomes) -> Generator[Done | Failed]:
    """Call `run`, which must pickle, inside the cluster: Ray Data does not work through Ray Client.

    An actor drives the run and returns one outcome after the other. It ends with the connection, and so do the actors
    that it started.
    """
    import ray

    coordinator = ray.remote(num_cpus=0, max_restarts=0)(_Coordinator).remote(pickle.dumps(run))
    try:
        while (outcome := ray.get(coordinator.following.remote())) is not None:
            yield pickle.loads(outcome)
    finally:
        ray.kill(coordinator)
