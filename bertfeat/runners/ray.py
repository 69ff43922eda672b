"""Runner of shards on a Ray cluster: actors load the model once, write the parts, and return receipts.

The cluster is one that runs, or one that is started on this machine.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bertfeat import devices
from bertfeat.errors import RunError, UserError, require
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.overlap import TaskThread
from bertfeat.runners.pool import Pool, outcome_of
from bertfeat.runners.task import MakeTask, PreparedT, shards_in_hand, writers_for

# Only shards and receipts pass through it; by default Ray reserves a third of the memory.
_OBJECT_STORE_BYTES = 100_000_000
_HERE = "local"
_ANSWER_S = 10.0


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
    """Run shards on a Ray cluster; yield each receipt as it comes. Errors are those of `run_shards`."""
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


class Machine(NamedTuple):
    """The CPUs and GPUs of a machine of the cluster."""

    n_cpus: int
    n_gpus: int

    def room(self, cpus_each: int, *, on_gpu: bool) -> int:
        """Return the number of actors that fit, with `cpus_each` CPUs and, if `on_gpu`, one GPU each."""
        room = self.n_cpus // cpus_each
        return min(room, self.n_gpus) if on_gpu else room


def share_out(machines: Sequence[Machine], n_actors: int | None, *, on_gpu: bool) -> tuple[int, int]:
    """Return the number of actors, unless it is given, and the largest number of CPUs that each can have.

    The default number is one per GPU if `on_gpu`, otherwise one per machine. If a number is given, the cluster may
    still grow to hold them.

    Examples:
        >>> share_out([Machine(8, 0), Machine(24, 0)], None, on_gpu=False)
        (2, 12)
    """
    n_actors = n_actors or sum(m.room(1, on_gpu=True) if on_gpu else m.n_cpus > 0 for m in machines)
    if not n_actors:
        what = "GPU" if on_gpu else "CPU"
        raise UserError(f"the Ray cluster has no {what} now; if it grows on demand, pass `workers`")
    sizes = range(max((machine.n_cpus for machine in machines), default=1), 1, -1)
    fits = (size for size in sizes if sum(m.room(size, on_gpu=on_gpu) for m in machines) >= n_actors)
    return n_actors, next(fits, 1)


def machines_of_cluster() -> list[Machine]:
    """Return the machines that are up in the cluster that this process is connected to."""
    import ray

    offered = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Machine(int(resources.get("CPU", 0)), int(resources.get("GPU", 0))) for resources in offered]


def check_ray(address: str | None) -> None:
    """Refuse a run without Ray, or without a server at the address; does not load Ray."""
    require("ray", what="`runner='ray'` needs")
    host, _, port = _resolved(address).removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "check the address and that Ray runs there"
        raise UserError(f"`ray_address='{_resolved(address)}'`: no answer ({reason}); {hint}") from error


def _resolved(address: str | None) -> str:
    return address or os.environ.get("RAY_ADDRESS") or _HERE


@contextmanager
def connection(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start Ray on this machine, for the block; an existing connection is used and kept.

    `address` is `auto`, `HOST:PORT` or `ray://HOST:PORT`; `local` starts Ray here, as does None unless $RAY_ADDRESS is
    set.
    """
    check_ray(address)
    address = _resolved(address)
    _prepare_environment(starts_here=address == _HERE)
    import ray
    from ray.exceptions import RayError

    is_ours = not ray.is_initialized()
    if is_ours:
        _init(address)
    try:
        yield
    except (RayError, ConnectionError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RunError(f"Ray failed: {reason.strip()}; run the same command again to resume") from error
    finally:
        if is_ours:
            ray.shutdown()


def _prepare_environment(*, starts_here: bool) -> None:
    """Set the variables that Ray reads at import: no usage statistics, and a token for a cluster started here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's core writes the same to standard error and to its log files.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    chosen = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if starts_here and not chosen:
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(_own_token())
        # After import, Ray does not read this again, and asks for a token by itself.
        if "ray" not in sys.modules:
            os.environ["RAY_AUTH_MODE"] = "token"


@cache
def _own_token() -> Path:
    """Write a token that only this user can read; one per process, since Ray keeps the first that it reads."""
    folder = tempfile.mkdtemp(prefix="bertfeat-ray-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    token = Path(folder) / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    return token


def _init(address: str) -> None:
    import ray

    settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == _HERE:
        settings |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    try:
        ray.init(**settings)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if address == _HERE:
            raise RunError(f"Ray does not start on this machine: {reason}") from error
        raise UserError(f"`ray_address='{address}'`: cannot connect: {reason}") from error
