"""Transfers of arrays to a device and back, through pinned memory and beside the device's own work."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

# The share of a device's free memory that the vectors of a shard may take.
_MAX_SHARE = 0.25


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return an array on a device. On the CPU it shares the memory; to CUDA it is copied without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def gathering_device(device: torch.device, n_bytes: int) -> torch.device:
    """Return where the vectors of a shard, `n_bytes`, are gathered: on a CUDA device with enough room, else the CPU.

    From the device they are copied once per shard, not once per pack while the device waits.
    """
    if device.type != "cuda":
        return torch.device("cpu")
    kept_by_torch = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    has_room = n_bytes <= _MAX_SHARE * (torch.cuda.mem_get_info(device)[0] + kept_by_torch)
    return device if has_room else torch.device("cpu")


class Fetches:
    """Copies from a device, whose work begins now, to the host, while the device computes the next shard."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._computing = torch.cuda.current_stream(device)
            self._begin = self._mark()
            self._end = self._begin

    def fetch(self, tensor: torch.Tensor) -> npt.NDArray[Any]:
        """Return the array that holds a tensor's values after `wait`; a tensor on the CPU shares its memory."""
        if self._device.type == "cuda":
            self._end = self._mark()
        if tensor.device.type != "cuda":
            return tensor.cpu().numpy()
        # The user may have set another default device, where memory cannot be pinned.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._stream.wait_stream(self._computing)
        with torch.cuda.stream(self._stream):
            host.copy_(tensor, non_blocking=True)
            # A thread sleeps while it waits for a blocking event, so that the tokenizer can use the core.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(self._stream)
        # Keeps the tensor's memory until the copy is done.
        tensor.record_stream(self._stream)
        self._events.append(event)
        return host.numpy()

    def wait(self) -> dict[str, float]:
        """Wait until every array that was fetched holds its values.

        Return the seconds that a CUDA device took for all of the work, as `encode`; nothing for other devices.
        """
        if self._device.type != "cuda":
            return {}
        # Without this, the thread would open the first device as well.
        with torch.cuda.device(self._device):
            for event in (*self._events, self._end):
                event.synchronize()
            return {"encode": self._begin.elapsed_time(self._end) / 1000}

    def _mark(self) -> torch.cuda.Event:
        mark = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        mark.record(self._computing)
        return mark
