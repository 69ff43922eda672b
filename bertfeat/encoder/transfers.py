"""Arrays to a device and back without keeping it waiting: pinned memory, copies that run beside its work."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

# Of the memory that is free on a device, the share that a shard's vectors may take.
_MAX_SHARE = 0.25


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array on a device; on the CPU it shares the memory.

    To CUDA it is copied through pinned memory, so that the host goes on and queues the work that needs it.
    """
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def gathering_device(device: torch.device, n_bytes: int) -> torch.device:
    """Return where a shard's vectors are gathered, `n_bytes` of them: on a CUDA device where it has room, or the CPU.

    Gathered on the device, they are copied once a shard, and not once a pack with the device waiting.
    """
    if device.type != "cuda" or n_bytes > _MAX_SHARE * torch.cuda.mem_get_info(device)[0]:
        return torch.device("cpu")
    return device


class Fetches:
    """Copies from a device to the host, which go on while the device computes the next shard."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._events: list[torch.cuda.Event] = []

    def fetch(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        """Return the array that holds a tensor's values after `wait`; a tensor on the CPU shares its memory."""
        if tensor.device.type != "cuda":
            return tensor.cpu().numpy()
        if tensor.device not in self._streams:
            self._streams[tensor.device] = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
        stream = self._streams[tensor.device]
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            host.copy_(tensor, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        # Its memory is not given to another tensor before the copy is done.
        tensor.record_stream(stream)
        self._events.append(event)
        return host.numpy()

    def wait(self) -> None:
        """Wait until every array that was fetched holds its values."""
        for event in self._events:
            event.synchronize()
        self._events.clear()
