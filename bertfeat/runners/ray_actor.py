"""Worker on a Ray cluster: an actor that loads the model once and takes several shards at a time.

Ray restarts an actor that died and repeats its tasks without limit, so the tries are counted here, in the store. Ray
may also hang on an exit raised in a worker, so nothing is raised out of it.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bertfeat.errors import BertfeatError
from bertfeat.progress import unreported
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.fence import Fence
from bertfeat.runners.task import MakeTask, Task
from bertfeat.runners.tries import Tries
from bertfeat.runners.worker import Done, Failed
from bertfeat.storage import AnyPath

_LAST_LINES = -3


@dataclass(frozen=True, slots=True)
class ActorSetup:
    """The settings of an actor; small, and it pickles."""

    make_task: MakeTask[Any]
    folder: AnyPath
    fence: Fence
    n_cpus: int


class Turns:
    """Lock that admits several threads, or one alone: shards overlap, but a shard that may kill its worker runs alone.

    A thread that waits to be alone keeps out later ones.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_inside = 0
        self._n_waiting_alone = 0

    @contextmanager
    def take(self, *, alone: bool) -> Iterator[None]:
        """Wait for a turn and keep it during the block."""
        with self._changed:
            self._n_waiting_alone += alone
            self._changed.wait_for(lambda: self._n_inside == 0 if alone else self._n_waiting_alone == 0)
            self._n_inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_inside -= 1
                # It counts as waiting until it is done, which keeps the others out.
                self._n_waiting_alone -= alone
                self._changed.notify_all()


class ShardActor:
    """Runner of shards that come in rows of pickles, in several threads at once; returns the outcome of each."""

    def __init__(self, setup: bytes) -> None:
        """Keep the pickled `ActorSetup`; loading waits for the first shard, whose outcome can report errors."""
        self._setup = setup
        self._task: Task[Any] | None = None
        self._in_hand: set[str] = set()
        self._turns = Turns()
        self._loads, self._prepares, self._encodes = (threading.Lock() for _ in range(3))
        # One shard is encoded, and one waits for that.
        self._before_commit = threading.Semaphore(2)
        self._commits = threading.Semaphore()

    def __call__(self, rows: Mapping[str, Sequence[bytes]]) -> dict[str, list[bytes]]:
        """Run the shard in the one row; return a row with a pickled `Done` or `Failed`."""
        shard: ShardSpec = pickle.loads(rows["shard"][0])
        return {"outcome": [pickle.dumps(self._outcome(shard))]}

    def _outcome(self, shard: ShardSpec) -> Done | Failed:
        try:
            with self._loads:
                task = self._task or self._load()
                self._task = task
        except BaseException as error:
            return _failed(None, error)
        try:
            with self._turns.take(alone=self._tries.count(shard.name) > 0):
                if not self._begin(shard.name):
                    return Failed(shard.index, None, self._tries.reason(shard.name))
                self._in_hand.add(shard.name)
                receipt = self._run(task, shard)
                self._in_hand.remove(shard.name)
                self._tries.forget(shard.name)
                return Done(receipt)
        except BertfeatError as error:
            return _failed(shard.index, error)
        except BaseException as error:
            self._start_over(shard, _failed(shard.index, error).reason)
            raise

    def _load(self) -> Task[Any]:
        setup: ActorSetup = pickle.loads(self._setup)
        self._fence, self._tries = setup.fence, Tries(setup.folder)
        # A restarted actor has the same id.
        name = f"start-{_actor_id()}"
        if not self._begin(name):
            raise RuntimeError(self._tries.reason(name))
        # Libraries that use all cores by default get the actor's share.
        for variable in ("RAYON_NUM_THREADS", "POLARS_MAX_THREADS"):
            os.environ.setdefault(variable, str(setup.n_cpus))
        task = setup.make_task(0, max(1, (os.cpu_count() or 1) // setup.n_cpus))
        self._tries.forget(name)
        self._commits = threading.Semaphore(task.n_writers)
        return task

    def _begin(self, name: str) -> bool:
        # An actor that outlives its run creates no marker files in the store of the next run.
        with self._fence.held():
            return self._tries.begin(name)

    def _run(self, task: Task[Any], shard: ShardSpec) -> Receipt:
        with self._before_commit:
            with self._prepares:
                prepared = task.prepare(shard)
            with self._encodes:
                result = task.encode(prepared, unreported)
            del prepared
        with self._commits, self._fence.held():
            return task.commit(shard, result)

    def _start_over(self, shard: ShardSpec, reason: str) -> None:
        """End this process, whose state may be damaged; Ray starts it again and repeats its tasks."""
        self._tries.explain(shard.name, reason)
        for name in self._in_hand - {shard.name}:
            self._tries.take_back(name)
        sys.stderr.flush()
        os._exit(1)


def _failed(shard: int | None, error: BaseException) -> Failed:
    known = error if isinstance(error, BertfeatError) else None
    return Failed(shard, known, "".join(traceback.format_exception(error, limit=_LAST_LINES)))


def _actor_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_actor_id())
