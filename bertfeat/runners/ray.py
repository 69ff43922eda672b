"""Shards on a Ray cluster: rows of Ray Data go through a pool of actors, which write; small rows come back."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from bertfeat.errors import RunError
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.fence import fence_around
from bertfeat.runners.ray_actor import ActorSetup, ShardActor
from bertfeat.runners.ray_client import is_client, outcomes_through_client
from bertfeat.runners.ray_cluster import Share, connection, machines_of_cluster, share_out
from bertfeat.runners.task import MakeTask, PreparedT, shards_in_hand, writers_for
from bertfeat.runners.tries import given_up
from bertfeat.runners.worker import Done, Failed
from bertfeat.storage import AnyPath


@dataclass(frozen=True, slots=True)
class OnRay:
    """Where and how shards run on Ray.

    `address` is None for a cluster started on this machine, `n_workers` None for as many as the cluster has GPUs or
    machines. `folder` is for the marks of the run: every machine sees it, and the next run on the store empties it.
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
        RunError: A shard failed three times, the others being done; or actors cannot begin.
        BertfeatError: What a worker raised on purpose; the run ends with it at once.
    """
    progress.stage("starting Ray" if place.address is None else f"connecting to Ray at {place.address}")
    failures: dict[int, str] = {}
    with fence_around(place.folder) as fence, connection(place.address):
        share = share_out(machines_of_cluster(), place.n_workers, on_gpu=place.on_gpu)
        share = Share(min(share.n_actors, len(shards)), share.n_cpus)
        setup = ActorSetup(make_task, place.folder, fence, share.n_cpus)
        progress.stage("loading the model")
        run = partial(_outcomes_of, setup, shards, share, on_gpu=place.on_gpu)
        with closing(outcomes_through_client(run) if is_client() else run()) as outcomes, _ray_errors():
            for outcome in outcomes:
                if isinstance(outcome, Done):
                    progress.encoded(outcome.receipt.counts.get("n_encoded_tokens", 0))
                    yield outcome.receipt
                else:
                    failures |= _settled(outcome)
    if failures:
        raise given_up(failures)


def _settled(outcome: Failed) -> dict[int, str]:
    """Return why a shard was given up; raise what ends the run."""
    if outcome.error is not None:
        raise outcome.error
    if outcome.shard is None:
        raise RunError(f"actors cannot begin ({outcome.reason}); pass --runner local to see more")
    return {outcome.shard: outcome.reason}


@contextmanager
def _ray_errors() -> Iterator[None]:
    """Turn what Ray raises of itself into one line."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
        raise RunError(f"Ray failed: {reason.strip()}; run the same command again to resume") from error


def _outcomes_of(
    setup: ActorSetup, shards: Sequence[ShardSpec], share: Share, *, on_gpu: bool
) -> Generator[Done | Failed]:
    """Run shards in a pool of actors of the cluster that this process belongs to; yield what became of each.

    Raises:
        RunError: Ray failed.
    """
    from ray.data import ActorPoolStrategy, DataContext, from_items

    # Set up when it is imported, as talkative as it is there.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # One row a block, whatever the size: a shard must not wait for others in its batch.
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
    """Return Ray Data's settings: its defaults, silent, and never giving up on a shard that takes long."""
    from ray.data import DataContext

    context = DataContext()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = -1
    context.issue_detectors_config.detectors = []
    context.max_errored_blocks = 0
    return context
