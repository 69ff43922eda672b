"""Runner of shards in several processes: a process that dies is replaced, and a shard gets three tries."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from bertfeat.errors import RunError
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.task import MakeTask, PreparedT, shards_in_hand
from bertfeat.runners.tries import MAX_TRIES, given_up
from bertfeat.runners.worker import BOOT, Done, Encoded, Failed, Message, Ready, Started

_GRACE_S = 10.0


@dataclass(eq=False)
class _Process:
    """A worker process, the shards that it holds, and how many it may hold."""

    number: int
    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]
    held: dict[int, ShardSpec] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    n_ahead: int = shards_in_hand(1)
    alone: bool = False
    failure: Failed | None = None

    def send(self, message: object) -> None:
        """Send a message; a dead process is noticed where its messages are received."""
        # A shard over thousands of files exceeds the pipe's buffer, so a thread of the worker always reads.
        with suppress(OSError):
            self.pipe.send_bytes(pickle.dumps(message))

    def end(self) -> None:
        """Kill the process. Finished shards are on disk; unfinished files are removed later."""
        self.pipe.close()
        self.process.kill()
        self.process.wait()

    def why_it_ended(self) -> str:
        """Wait for the end of a process whose pipe is closed, and return the cause."""
        try:
            code = self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.failure is not None:
            return self.failure.reason
        if code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"killed by {name}" + (", perhaps out of memory" if name == "SIGKILL" else "")


class ProcessPool:
    """Runner of shards in new processes of this interpreter.

    They are not forked, because a child forked after `import pyarrow` can hang. They are not made by `multiprocessing`,
    because its children run the caller's main script again, in full unless it checks `__name__`.
    """

    def __init__(
        self, make_task: MakeTask[PreparedT], shards: Sequence[ShardSpec], n_workers: int, progress: Progress
    ) -> None:
        self._make_task = make_task
        self._n_workers = n_workers
        self._progress = progress
        self._waiting = deque(shards)
        # Shards that had started when a worker died run again one at a time, so that the next death has one cause.
        self._suspects: deque[ShardSpec] = deque()
        self._tries: Counter[int] = Counter()
        self._failures: dict[int, str] = {}
        self._processes: list[_Process] = []
        self._n_false_starts = 0

    def run(self) -> Iterator[Receipt]:
        """Yield receipts as shards are done.

        Raises:
            RunError: A shard failed three times and the others are done; or workers cannot start.
            BertfeatError: A worker raised this error on purpose; the run ends at once.
        """
        try:
            while self._waiting or self._suspects or any(process.held for process in self._processes):
                self._hire()
                yield from self._listen()
        finally:
            for process in self._processes:
                process.end()
        if self._failures:
            raise given_up(self._failures)

    def _hire(self) -> None:
        n_wanted = min(self._n_workers, len(self._waiting) + len(self._suspects) + len(self._processes))
        taken = {process.number for process in self._processes}
        for number in [n for n in range(self._n_workers) if n not in taken][: n_wanted - len(taken)]:
            try:
                process = _start(number, self._n_workers)
            except OSError as error:
                reason = error.strerror or str(error)
                raise RunError(f"worker processes do not start ({reason.lower()}); pass `workers=1`") from error
            self._processes.append(process)
            process.send(partial(self._make_task, number, self._n_workers))
        # In turns, and at most an equal share of the remaining shards, so that the last ones spread over all workers.
        n_left = len(self._waiting) + sum(len(worker.held) for worker in self._processes)
        share = max(shards_in_hand(1), math.ceil(n_left / max(1, len(self._processes))))
        most = max((worker.n_ahead for worker in self._processes), default=0)
        for n_ahead in range(1, min(most, share) + 1):
            for worker in self._processes:
                self._feed(worker, min(n_ahead, worker.n_ahead))

    def _feed(self, process: _Process, n_ahead: int) -> None:
        if process.failure is not None:
            return
        if self._suspects and not process.held:
            process.alone = True
            self._give(process, self._suspects.popleft())
        if self._waiting and not process.alone and len(process.held) < n_ahead:
            self._give(process, self._waiting.popleft())

    def _give(self, process: _Process, shard: ShardSpec) -> None:
        process.held[shard.index] = shard
        process.send(shard)

    def _listen(self) -> Iterator[Receipt]:
        by_pipe = {process.pipe: process for process in self._processes}
        for pipe in wait(list(by_pipe)):
            process = by_pipe[pipe]  # type: ignore[index]
            try:
                message: Message = process.pipe.recv()
            except (EOFError, OSError):
                self._bury(process)
                continue
            if isinstance(message, Done):
                self._n_false_starts = 0
                del process.held[message.receipt.shard]
                process.alone = False
                yield message.receipt
            else:
                self._hear(process, message)

    def _hear(self, process: _Process, message: Ready | Started | Encoded | Failed) -> None:
        if isinstance(message, Ready):
            process.n_ahead = message.n_shards
            self._progress.stage("tokenizing")
        elif isinstance(message, Started):
            process.started.add(message.shard)
        elif isinstance(message, Encoded):
            self._progress.encoded(*message)
        elif message.error is not None:
            raise message.error
        elif message.shard is None:
            # An error before the first shard would occur in every worker.
            raise RunError(f"worker processes cannot begin ({message.reason}); pass `workers=1` to see more")
        else:
            process.failure = message

    def _bury(self, process: _Process) -> None:
        """Take back the shards of a dead worker, and count a try for those that it had started."""
        why = process.why_it_ended()
        process.pipe.close()
        self._processes.remove(process)
        blamed = process.started & process.held.keys()
        if process.failure is not None and process.failure.shard is not None:
            blamed = {process.failure.shard}
        if not blamed:
            self._n_false_starts += 1
            if self._n_false_starts >= MAX_TRIES:
                raise RunError(f"worker processes do not start ({why}); pass `workers=1` to see more")
        for number, shard in reversed(process.held.items()):
            if number not in blamed:
                self._waiting.appendleft(shard)
                continue
            self._tries[number] += 1
            if self._tries[number] >= MAX_TRIES:
                self._failures[number] = why
            else:
                self._suspects.append(shard)


def _start(number: int, n_workers: int) -> _Process:
    ours, theirs = Pipe()
    # Libraries that use all cores by default get the worker's share, unless the user has set a number.
    share = str(max(1, (os.cpu_count() or 1) // n_workers))
    path = json.dumps(list(map(str, sys.path)))
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", BOOT, str(theirs.fileno()), path],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Standard output is for results; libraries print to standard error.
            stdout=2,
            env={"RAYON_NUM_THREADS": share, "POLARS_MAX_THREADS": share, **os.environ},
            # The terminal's Ctrl-C reaches only the parent, which ends all workers.
            process_group=0,
        )
    return _Process(number, process, ours)
