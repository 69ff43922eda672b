"""Worker process: takes shards from its pipe, reports the outcome of each, and never outlives its parent."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Generic, NamedTuple

from bertfeat.errors import BertfeatError
from bertfeat.progress import INTERVAL_S, Report, Silent
from bertfeat.records import Receipt, ShardResult, ShardSpec
from bertfeat.runners.local import run_overlapped
from bertfeat.runners.task import PreparedT, Task, shards_in_hand

# The code of a new interpreter. It sets the parent's module search path first: bertfeat may be found only there.
BOOT = "import json,sys; sys.path[:]=json.loads(sys.argv[2]); from bertfeat.runners.worker import main; main()"


class Ready(NamedTuple):
    """The task is made, and this many shards at hand keep the worker busy."""

    n_shards: int


class Started(NamedTuple):
    """A shard has started; from now on it may be the cause of a death."""

    shard: int


class Encoded(NamedTuple):
    """How far the encoder is in a shard; see `Progress.encoded`."""

    shard: int
    n_documents: int
    n_tokens: int
    n_tokens_in_shard: int


class Done(NamedTuple):
    """A shard is safely on disk."""

    receipt: Receipt


class Failed(NamedTuple):
    """A worker ends: an error that was raised on purpose, or the last lines of a traceback.

    `shard` is the shard that raised it, None if the worker had not begun.
    """

    shard: int | None
    error: BertfeatError | None
    detail: str

    @property
    def reason(self) -> str:
        """The error in one line."""
        return self.detail.strip().splitlines()[-1]


Message = Ready | Started | Encoded | Done | Failed


def main() -> None:
    """Work for the process at the other end of the pipe whose file descriptor is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what becomes of its workers
    pipe = Connection(int(sys.argv[1]))
    work(Inbox(pipe), pipe)


def work(inbox: Inbox, pipe: Connection) -> None:
    """Make a task by the first message and run the shards that follow; return only after an error, which is sent."""
    reporter = _Reporter(pipe, inbox)
    try:
        task = Watched(inbox.take()(), reporter)
        reporter.send(Ready(shards_in_hand(task.n_writers)))
        for receipt in run_overlapped(task, inbox.shards(), reporter):
            reporter.send(Done(receipt))
    except Exception as error:  # the parent must receive every error
        known = error if isinstance(error, BertfeatError) else None
        reporter.send(Failed(reporter.blamed, known, traceback.format_exc(limit=-3)))


class Inbox:
    """The messages of the parent, read by a separate thread, so that the parent never waits to send.

    If the parent is gone or has closed its end, the process ends at once.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        try:
            while True:
                self._waiting.put(self._pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)

    def take(self) -> Any:
        """Wait for the next message; None after `close`."""
        data = self._waiting.get()
        return None if data is None else pickle.loads(data)

    def shards(self) -> Iterator[ShardSpec]:
        """Yield shards as they come, until `close`."""
        while (shard := self.take()) is not None:
            yield shard

    def close(self) -> None:
        """Stop waiting for shards, since a stage has failed."""
        self._waiting.put(None)


class _Reporter(Silent):
    """A progress that sends to the parent, from several threads; `blamed` is the shard that raised the first error."""

    def __init__(self, pipe: Connection, inbox: Inbox) -> None:
        self._pipe = pipe
        self._inbox = inbox
        self._lock = threading.Lock()
        self._encoded_at = 0.0
        self.blamed: int | None = None

    def send(self, message: Message) -> None:
        """Send a message to the parent."""
        with self._lock:
            self._pipe.send(message)

    def encoded(self, shard: int, n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:
        """Report the start and the end of encoding, and the state between them every `INTERVAL_S`."""
        now = time.monotonic()
        if n_tokens in (0, n_tokens_in_shard) or now - self._encoded_at >= INTERVAL_S:
            self._encoded_at = now
            self.send(Encoded(shard, n_documents, n_tokens, n_tokens_in_shard))

    @contextmanager
    def blame(self, shard: ShardSpec) -> Iterator[None]:
        """Record the shard that raised an error, and take no further shards."""
        try:
            yield
        except BaseException:
            if self.blamed is None:
                self.blamed = shard.index
            self._inbox.close()
            raise


class Watched(Generic[PreparedT]):
    """A task that reports which shard it starts, and which one raised an error."""

    def __init__(self, task: Task[PreparedT], reporter: _Reporter) -> None:
        self._task = task
        self._reporter = reporter
        self.n_writers = task.n_writers

    def prepare(self, shard: ShardSpec) -> tuple[ShardSpec, PreparedT]:
        """Report the start, and prepare."""
        self._reporter.send(Started(shard.index))
        with self._reporter.blame(shard):
            return shard, self._task.prepare(shard)

    def encode(self, prepared: tuple[ShardSpec, PreparedT], report: Report) -> ShardResult:
        """Encode."""
        with self._reporter.blame(prepared[0]):
            return self._task.encode(prepared[1], report)

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        """Commit."""
        with self._reporter.blame(shard):
            return self._task.commit(shard, result)
