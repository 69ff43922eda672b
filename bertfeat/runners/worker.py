"""A worker process: takes shards from its pipe, tells of each what became of it, and never outlives its parent."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Generic

from bertfeat.errors import BertfeatError
from bertfeat.progress import Progress, Silent
from bertfeat.records import Receipt, ShardResult, ShardSpec
from bertfeat.runners.local import run_overlapped
from bertfeat.runners.task import MakeTask, PreparedT, Task


@dataclass(frozen=True, slots=True)
class Started:
    """A shard was taken up; from here on, a death may be its doing."""

    shard: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """So many tokens went through the encoder."""

    n_tokens: int


@dataclass(frozen=True, slots=True)
class Done:
    """A shard is safely on disk."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker gives up: an error that was raised on purpose, or the last lines of a traceback.

    `shard` is the shard that it came from, None where the worker had not begun.
    """

    shard: int | None
    error: BertfeatError | None
    detail: str


Message = Started | Encoded | Done | Failed


def work(make_task: MakeTask[PreparedT], worker: int, n_workers: int, pipe: Connection) -> None:
    """Run the shards that come down the pipe until None does.

    Args:
        make_task: Makes this worker's task.
        worker: Its number.
        n_workers: How many there are on this machine.
        pipe: Shards and None in, messages out.
    """
    # A Ctrl-C reaches the whole process group; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    reporter = Reporter(pipe)
    try:
        task = Watched(make_task(worker, n_workers), reporter)
        for receipt in run_overlapped(task, _shards(pipe), reporter):
            reporter.send(Done(receipt))
    except Exception as error:  # whatever went wrong, the parent must hear of it
        known = error if isinstance(error, BertfeatError) else None
        reporter.send(Failed(reporter.blamed, known, traceback.format_exc(limit=-3)))


def _shards(pipe: Connection) -> Iterator[ShardSpec]:
    while (shard := pipe.recv()) is not None:
        yield shard


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


class Reporter(Silent):
    """A progress that goes up the pipe; threads take turns.

    Attributes:
        blamed: The shard that an error came from.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self.blamed: int | None = None

    def send(self, message: Message) -> None:
        """Send a message to the parent."""
        with self._lock:
            self._pipe.send(message)

    def encoded(self, n_tokens: int) -> None:
        """Tell of tokens."""
        self.send(Encoded(n_tokens))

    @contextmanager
    def blame(self, shard: ShardSpec) -> Iterator[None]:
        """Note which shard an error came from."""
        try:
            yield
        except BaseException:
            self.blamed = shard.index
            raise


class Watched(Generic[PreparedT]):
    """A task that tells which shard it takes up, and which one an error came from."""

    def __init__(self, task: Task[PreparedT], reporter: Reporter) -> None:
        self._task = task
        self._reporter = reporter

    def prepare(self, shard: ShardSpec) -> tuple[ShardSpec, PreparedT]:
        """Prepare, and say so first."""
        self._reporter.send(Started(shard.index))
        with self._reporter.blame(shard):
            return shard, self._task.prepare(shard)

    def encode(self, prepared: tuple[ShardSpec, PreparedT], progress: Progress) -> ShardResult:
        """Encode."""
        with self._reporter.blame(prepared[0]):
            return self._task.encode(prepared[1], progress)

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Commit."""
        with self._reporter.blame(shard):
            return self._task.commit(shard, result)
