"""Arrays to a device and back; the CUDA side of it is in test_gpu.py."""

from __future__ import annotations

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
