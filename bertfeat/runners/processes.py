"""Shards in several processes of this machine: one that dies is replaced, and a shard gets three tries."""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from bertfeat.errors import RunError
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec
from bertfeat.runners.task import MakeTask, PreparedT
from bertfeat.runners.worker import Done, Encoded, Failed, Message, Started, work

MAX_TRIES = 3
# One being written, one being encoded, one being read.
_SHARDS_AHEAD = 3
_GRACE_S = 30.0


@dataclass(eq=False)
class _Process:
    """A worker process and the shards that it holds."""

    number: int
    process: BaseProcess
    pipe: Connection
    held: dict[int, ShardSpec] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    alone: bool = False
    told: Failed | None = None


class ProcessPool:
    """Runs shards in spawned processes (a child forked after `import pyarrow` can hang)."""

    def __init__(
        self, make_task: MakeTask[PreparedT], shards: Sequence[ShardSpec], n_workers: int, progress: Progress
    ) -> None:
        """Set up a pool that has not started a process yet."""
        self._make_task = make_task
        self._n_workers = n_workers
        self._progress = progress
        self._context = multiprocessing.get_context("spawn")
        self._waiting = deque(shards)
        # Shards that were at work when a worker died run again one at a time, so that the next death has one cause.
        self._suspects: deque[ShardSpec] = deque()
        self._tries: Counter[int] = Counter()
        self._failures: dict[int, str] = {}
        self._processes: list[_Process] = []
        self._n_false_starts = 0

    def run(self) -> Iterator[Receipt]:
        """Yield receipts as shards are done.

        Raises:
            RunError: A shard failed three times, the others being done; or workers cannot start.
            BertfeatError: What a worker raised on purpose; the run ends with it at once.
        """
        try:
            while self._waiting or self._suspects or any(process.held for process in self._processes):
                self._hire()
                yield from self._listen()
            self._dismiss()
        finally:
            for process in self._processes:
                process.process.kill()
        if self._failures:
            names = ", ".join(f"{number:05d} ({why})" for number, why in sorted(self._failures.items()))
            raise RunError(
                f"shards failed {MAX_TRIES} times: {names}; the others are done: run the same command again to try them"
            )

    def _hire(self) -> None:
        n_wanted = min(self._n_workers, len(self._waiting) + len(self._suspects) + len(self._processes))
        taken = {process.number for process in self._processes}
        for number in [n for n in range(self._n_workers) if n not in taken][: n_wanted - len(taken)]:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(
                target=work, args=(self._make_task, number, self._n_workers, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(_Process(number, process, ours))
        # In turns, so that the last shards spread over the workers.
        for n_ahead in range(1, _SHARDS_AHEAD + 1):
            for worker in self._processes:
                self._feed(worker, n_ahead)

    def _feed(self, process: _Process, n_ahead: int) -> None:
        if self._suspects and not process.held:
            process.alone = True
            self._give(process, self._suspects.popleft())
        if self._waiting and not process.alone and len(process.held) < n_ahead:
            self._give(process, self._waiting.popleft())

    def _give(self, process: _Process, shard: ShardSpec) -> None:
        process.held[shard.index] = shard
        try:
            process.pipe.send(shard)
        except OSError:
            # It is dead; `_listen` finds that out and gives its shards to others.
            return

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

    def _hear(self, process: _Process, message: Started | Encoded | Failed) -> None:
        if isinstance(message, Started):
            process.started.add(message.shard)
        elif isinstance(message, Encoded):
            self._progress.encoded(message.n_tokens)
        elif message.error is not None:
            raise message.error
        else:
            process.told = message

    def _bury(self, process: _Process) -> None:
        """Take back the shards of a worker that is gone, and count a try for those it had taken up."""
        process.pipe.close()
        process.process.join()
        self._processes.remove(process)
        told = process.told
        why = f"exit code {process.process.exitcode}" if told is None else told.detail.strip().splitlines()[-1]
        blamed = process.started & process.held.keys()
        if told is not None and told.shard is not None:
            blamed = {told.shard}
        if not blamed:
            self._n_false_starts += 1
            if self._n_false_starts >= MAX_TRIES:
                raise RunError(f"worker processes do not start ({why}); pass --workers 1 to see more")
        for number, shard in reversed(process.held.items()):
            if number not in blamed:
                self._waiting.appendleft(shard)
                continue
            self._tries[number] += 1
            if self._tries[number] >= MAX_TRIES:
                self._failures[number] = why
            else:
                self._suspects.append(shard)

    def _dismiss(self) -> None:
        for process in self._processes:
            process.pipe.send(None)
        for process in self._processes:
            process.process.join(_GRACE_S)
