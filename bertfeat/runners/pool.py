"""Pool of workers, in processes or on Ray: each is kept busy with shards, and one that fails is replaced."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from bertfeat.errors import BertfeatError, RunError
from bertfeat.progress import Progress
from bertfeat.records import Receipt, ShardSpec

_MAX_FALSE_STARTS = 3


class Failed(NamedTuple):
    """The failure of a worker: an error that was raised on purpose, or any other reason in one line."""

    error: BertfeatError | None
    why: str


def outcome_of(future: Future[Any]) -> Any:
    """Wait for a future; return its result, or `Failed`."""
    try:
        return future.result()
    except BaseException as error:
        first = next(iter(str(error).strip().splitlines()), "")
        return Failed(error if isinstance(error, BertfeatError) else None, f"{type(error).__name__}: {first}")


class Worker(Protocol):
    """A process or an actor, which has failed if one of its futures holds `Failed` or an exception.

    `ready` holds, once the model is loaded, the number of shards that keep the worker busy.
    """

    ready: Future[Any]

    def submit(self, shard: ShardSpec) -> Future[Any]:
        """Run a shard after those submitted before; the future holds its receipt."""

    def close(self) -> None:
        """End the worker at once. Finished shards are on disk; unfinished files are removed later."""


@dataclass(eq=False, slots=True)
class _Member:
    """A worker, how many shards it may hold (none until it is ready), and those that it holds."""

    worker: Worker
    n_ahead: int = 0
    held: dict[int, ShardSpec] = field(default_factory=dict)


class Pool:
    """Runner of shards on `n_workers` workers, which `start` makes by their numbers.

    A worker that fails costs only the shards that it held. At the end they run again, one at a time in each worker, so
    that a failure has one cause.
    """

    def __init__(self, start: Callable[[int], Worker], n_workers: int, progress: Progress) -> None:
        self._start = start
        self._n_workers = n_workers
        self._progress = progress
        self._members: dict[int, _Member] = {}
        self._lost: dict[int, tuple[ShardSpec, str]] = {}
        self._n_false_starts = 0
        # Futures that are done, each with its worker and the index of its shard; None for `ready`.
        self._done: SimpleQueue[tuple[int, _Member, int | None, Future[Any]]] = SimpleQueue()

    def run(self, shards: Sequence[ShardSpec]) -> Generator[Receipt]:
        """Yield receipts as shards are done; errors are those of `run_shards`."""
        try:
            yield from self._run(shards, math.inf)
            again, self._lost = [shard for shard, _ in self._lost.values()], {}
            yield from self._run(again, 1)
        finally:
            for member in self._members.values():
                member.worker.close()
        if self._lost:
            names = ", ".join(f"{index:05d} ({why})" for index, (_, why) in sorted(self._lost.items()))
            raise RunError(f"shards failed twice: {names}; the others are done: run the same command again to try them")

    def _run(self, shards: Iterable[ShardSpec], most: float) -> Generator[Receipt]:
        """Run shards, at most `most` at a time in each worker."""
        waiting = deque(shards)
        while n_left := len(waiting) + sum(len(member.held) for member in self._members.values()):
            self._hire(len(waiting))
            # At most its share, so that the last shards spread over all workers.
            share = min(most, math.ceil(n_left / len(self._members)))
            for number, member in self._members.items():
                while waiting and len(member.held) < min(member.n_ahead, share):
                    shard = waiting.popleft()
                    member.held[shard.index] = shard
                    self._follow(number, member, shard.index, member.worker.submit(shard))
            number, member, index, future = self._done.get()
            if self._members.get(number) is not member:
                continue
            outcome = outcome_of(future)
            if isinstance(outcome, Failed):
                self._dismiss(number, member, outcome)
            elif index is None:
                member.n_ahead, self._n_false_starts = outcome, 0
                self._progress.stage("tokenizing")
            else:
                del member.held[index]
                yield outcome

    def _hire(self, n_waiting: int) -> None:
        free = [number for number in range(self._n_workers) if number not in self._members]
        for number in free[:n_waiting]:
            member = self._members[number] = _Member(self._start(number))
            self._follow(number, member, None, member.worker.ready)

    def _follow(self, number: int, member: _Member, index: int | None, future: Future[Any]) -> None:
        future.add_done_callback(lambda done: self._done.put((number, member, index, done)))

    def _dismiss(self, number: int, member: _Member, failure: Failed) -> None:
        """End a worker that failed; remember the shards that it held."""
        if failure.error is not None:
            raise failure.error
        member.worker.close()
        del self._members[number]
        self._lost |= {index: (shard, failure.why) for index, shard in member.held.items()}
        self._n_false_starts += not member.n_ahead
        if self._n_false_starts == _MAX_FALSE_STARTS:
            raise RunError(f"workers do not start ({failure.why}); `runner='local'` with `workers=1` shows more")
