"""Fake tasks for real worker processes, which do what a test asks for, and kills; without heavy imports."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfeat.durable import steps
from bertfeat.errors import ConfigError, InputError
from bertfeat.progress import Progress, Report
from bertfeat.records import FileSlice, Receipt, ShardResult, ShardSpec


def make_shards(n_shards: int) -> list[ShardSpec]:
    return [ShardSpec(index, index, 1, (FileSlice(0, 0, 0, 1),)) for index in range(n_shards)]


@dataclass(frozen=True)
class MakeFake:
    """Maker of fake tasks; `deeds` holds the deed of a shard under `STAGE:INDEX`, and that of a start under `start`.

    Each deed leaves a file in `folder`, with the time in its name.
    """

    folder: Path
    deeds: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, worker: int, n_workers: int) -> FakeTask:
        self.note("start")
        self.act("start")
        return FakeTask(self)

    def act(self, place: str) -> None:
        deed = self.deeds.get(place)
        if deed == "die once":
            deed = "die" if len(self.noted(place)) == 1 else None
        if deed == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif deed == "exit":
            os._exit(7)
        elif deed == "bug":
            raise KeyError(f"a bug at {place}")
        elif deed == "bad input":
            raise InputError("no such thing", path="corpus.txt", row=7)
        elif deed == "bad config":
            raise ConfigError("--layers 99 is wrong")
        elif deed == "sleep":
            time.sleep(600)

    def note(self, name: str) -> None:
        (self.folder / f"{name.replace(':', '-')}.{os.getpid()}.{time.monotonic_ns()}").touch()

    def noted(self, name: str) -> list[int]:
        """Return the processes that did it."""
        return [int(file.name.split(".")[1]) for file in self.folder.glob(f"{name.replace(':', '-')}.*")]

    def done(self) -> list[int]:
        return sorted(int(file.name.split(".")[0].split("-")[1]) for file in self.folder.glob("done-*"))


class FakeTask:
    n_writers = 1

    def __init__(self, make: MakeFake) -> None:
        self._make = make

    def prepare(self, shard: ShardSpec) -> ShardSpec:
        self._make.note(f"prepare:{shard.index}")
        self._make.act(f"prepare:{shard.index}")
        return shard

    def encode(self, prepared: ShardSpec, report: Report) -> ShardResult:
        self._make.note(f"encode:{prepared.index}")
        self._make.act(f"encode:{prepared.index}")
        report(1, 3, 3)
        return ShardResult({}, (), {}, {})

    def commit(self, shard: ShardSpec, result: ShardResult) -> Receipt:
        self._make.note(f"commit:{shard.index}")
        self._make.act(f"commit:{shard.index}")
        self._make.note(f"done:{shard.index}")
        return Receipt(shard.index, "", (), 0, {}, None)


class Heard(Progress):
    """A progress that keeps its reports."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.encodings: dict[int, list[tuple[int, int, int]]] = {}
        self.shards: list[int] = []

    def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
        self.said.append(text if n_total is None else f"{text} {n_done}/{n_total}")

    def encoded(self, shard: int, n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:
        self.encodings.setdefault(shard, []).append((n_documents, n_tokens, n_tokens_in_shard))

    def committed(self, receipt: Receipt) -> None:
        self.shards.append(receipt.shard)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Any, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def die_at(step: int | str) -> None:
    """Kill this process when it reaches a step, by its number from 1 on or by its name."""
    n_passed = 0

    def hook(name: str) -> None:
        nonlocal n_passed
        n_passed += 1
        if step in (name, n_passed):
            os.kill(os.getpid(), signal.SIGKILL)

    steps.hook = hook
