"""Arrays to a device and back; the CUDA side of it is in test_gpu.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bertfeat.encoder import transfers
from bertfeat.encoder.transfers import Fetches, gathering_device, to_device

CPU = torch.device("cpu")


def test_on_the_cpu_nothing_is_copied() -> None:
    array = np.arange(6, dtype=np.int64)
    tensor = to_device(array, CPU)
    array[0] = 7
    assert tensor.tolist() == [7, 1, 2, 3, 4, 5]
    fetches = Fetches(CPU)
    found = fetches.fetch(tensor)
    assert fetches.wait() == {}
    assert np.shares_memory(found, array)


def test_vectors_are_gathered_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    # What torch holds and does not use is room, too.
    monkeypatch.setattr(transfers.torch.cuda, "mem_get_info", lambda device: (1000, 8000))
    monkeypatch.setattr(transfers.torch.cuda, "memory_reserved", lambda device: 5000)
    monkeypatch.setattr(transfers.torch.cuda, "memory_allocated", lambda device: 2000)
    cuda = torch.device("cuda", 1)
    assert gathering_device(cuda, 1000) == cuda
    assert gathering_device(cuda, 1001) == CPU
    assert gathering_device(CPU, 1) == CPU
    assert gathering_device(torch.device("mps"), 1) == CPU


class FakeStream:
    calls: list[str]

    def __init__(self, device: torch.device) -> None:
        self.calls.append(f"stream on {device}")

    def wait_stream(self, other: str) -> None:
        self.calls.append(f"waits for {other}")

    def __enter__(self) -> None:
        self.calls.append("enter")

    def __exit__(self, *_: object) -> None:
        self.calls.append("exit")


class FakeEvent:
    calls: list[str]

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        assert blocking
        self.name = "mark" if enable_timing else "event"

    def record(self, stream: FakeStream | str) -> None:
        self.calls.append(f"{self.name} in {stream if isinstance(stream, str) else 'the own stream'}")

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def elapsed_time(self, end: object) -> float:
        assert end is not self
        return 2500.0


class FakeHost:
    calls: list[str]

    def __init__(self, shape: object, dtype: object, pin_memory: bool) -> None:
        self.calls.append(f"empty {shape} {dtype}, pinned={pin_memory}")

    def copy_(self, tensor: object, *, non_blocking: bool) -> None:
        self.calls.append(f"copy, non_blocking={non_blocking}")

    def numpy(self) -> str:
        return "array"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to CUDA, of which there is none here, in their order."""
    found: list[str] = []
    for fake in (FakeStream, FakeEvent, FakeHost):
        monkeypatch.setattr(fake, "calls", found, raising=False)

    @contextlib.contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        found.append(f"enter {device}")
        yield
        found.append(f"exit {device}")

    monkeypatch.setattr(transfers.torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(transfers.torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(transfers.torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(transfers.torch.cuda, "device", entered)
    monkeypatch.setattr(transfers.torch.cuda, "current_stream", lambda device: "the computing stream")
    monkeypatch.setattr(transfers.torch, "empty", FakeHost)
    return found


def test_a_fetch_runs_beside_the_device_and_is_waited_for(calls: list[str]) -> None:
    fake = SimpleNamespace(
        device=torch.device("cuda"),
        shape=(2, 3),
        dtype=torch.float16,
        record_stream=lambda stream: calls.append("tensor is used"),
    )
    fetches = Fetches(torch.device("cuda", 1))
    calls.append("work")
    assert fetches.fetch(fake) == "array"  # type: ignore[arg-type, comparison-overlap]
    assert calls == [
        "stream on cuda:1",
        "mark in the computing stream",
        "work",
        "mark in the computing stream",
        "empty (2, 3) torch.float16, pinned=True",
        "waits for the computing stream",
        "enter",
        "copy, non_blocking=True",
        "event in the own stream",
        "exit",
        "tensor is used",
    ]
    assert fetches.wait() == {"encode": 2.5}
    assert fetches.wait() == {}
    assert calls[-4:] == ["enter cuda:1", "synchronize", "synchronize", "exit cuda:1"]


@pytest.mark.usefixtures("calls")
def test_the_seconds_of_the_device_are_known_also_of_vectors_gathered_on_the_host() -> None:
    fetches = Fetches(torch.device("cuda"))
    assert fetches.fetch(torch.ones(2)).tolist() == [1, 1]
    assert fetches.wait() == {"encode": 2.5}
