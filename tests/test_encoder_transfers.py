"""Arrays to a device and back; the CUDA side of it is in test_gpu.py."""

from __future__ import annotations

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
    fetches = Fetches()
    found = fetches.fetch(tensor)
    fetches.wait()
    assert np.shares_memory(found, array)


def test_vectors_are_gathered_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers.torch.cuda, "mem_get_info", lambda device: (1000, 8000))
    cuda = torch.device("cuda", 1)
    assert gathering_device(cuda, 250) == cuda
    assert gathering_device(cuda, 251) == CPU
    assert gathering_device(CPU, 1) == CPU
    assert gathering_device(torch.device("mps"), 1) == CPU


def test_a_fetch_runs_beside_the_device_and_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the calls to CUDA, of which there is none here."""
    calls: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            calls.append(f"stream on {device}")

        def wait_stream(self, other: str) -> None:
            calls.append(f"waits for {other}")

        def __enter__(self) -> None:
            calls.append("enter")

        def __exit__(self, *_: object) -> None:
            calls.append("exit")

    class Event:
        def record(self, stream: Stream) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("synchronize")

    class Host:
        def copy_(self, tensor: object, *, non_blocking: bool) -> None:
            calls.append(f"copy, non_blocking={non_blocking}")

        def numpy(self) -> str:
            return "array"

    fake = SimpleNamespace(
        device=torch.device("cuda"),
        shape=(2, 3),
        dtype=torch.float16,
        record_stream=lambda stream: calls.append("tensor is used"),
    )

    def empty(shape: object, dtype: object, pin_memory: bool) -> Host:
        calls.append(f"empty {shape} {dtype}, pinned={pin_memory}")
        return Host()

    monkeypatch.setattr(transfers.torch.cuda, "Stream", Stream)
    monkeypatch.setattr(transfers.torch.cuda, "Event", Event)
    monkeypatch.setattr(transfers.torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(transfers.torch.cuda, "current_stream", lambda device: "the computing stream")
    monkeypatch.setattr(transfers.torch, "empty", empty)
    fetches = Fetches()
    assert fetches.fetch(fake) == "array"  # type: ignore[arg-type, comparison-overlap]
    assert calls == [
        "stream on cuda",
        "empty (2, 3) torch.float16, pinned=True",
        "waits for the computing stream",
        "enter",
        "copy, non_blocking=True",
        "record",
        "exit",
        "tensor is used",
    ]
    fetches.wait()
    fetches.wait()
    assert calls[-1] == "synchronize"
    assert calls.count("synchronize") == 1
