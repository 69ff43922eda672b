"""The device that computes, its data type, and the number of tokens per forward pass."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import torch

from bertfeat.config import ComputeDtype
from bertfeat.errors import ConfigError

_CUDA = re.compile(r"cuda(?::(\d{1,4}))?", re.ASCII)
_CPU_BATCH_TOKENS = 2048
# A GPU needs the same amount of work at every width: 65,536 tokens at the width of BERT-base.
_GPU_BATCH_VALUES = 65_536 * 768
_MPS_BATCH_VALUES = 8_192 * 768
_MIN_GPU_BATCH_TOKENS = 4_096
_MAX_GPU_BATCH_TOKENS = 131_072


def resolve_device(spec: str) -> tuple[torch.device, ...]:
    """Return the devices that the setting `device` names.

    Args:
        spec: `auto` (every CUDA device, else MPS, else the CPU), `cpu`, `mps`, `cuda` (every CUDA device), `cuda:1`, or
            several CUDA devices with commas.

    Raises:
        ConfigError: A device is malformed or is not available.

    Examples:
        >>> resolve_device("cpu")
        (device(type='cpu'),)
    """
    if spec == "auto":
        return _cuda_devices() or (torch.device("mps" if torch.backends.mps.is_available() else "cpu"),)
    if spec == "cpu":
        return (torch.device("cpu"),)
    if spec == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError("`device='mps'`: this machine has no Apple GPU that torch can use; pass `device='cpu'`")
        return (torch.device("mps"),)
    pieces = spec.replace(" ", "").split(",")
    return tuple(dict.fromkeys(device for piece in pieces for device in _cuda(piece, spec)))


def planned_device(spec: str, *, elsewhere: bool) -> torch.device:
    """Return the device that a plan is made for; if other machines compute (`elsewhere`), `cuda` needs no device here.

    Raises:
        ConfigError: A device is malformed or is not available.
    """
    return torch.device("cuda") if elsewhere and spec == "cuda" else resolve_device(spec)[0]


def _cuda_devices() -> tuple[torch.device, ...]:
    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(torch.device("cuda", index) for index in range(n_devices))


def _cuda(piece: str, spec: str) -> tuple[torch.device, ...]:
    match = _CUDA.fullmatch(piece)
    if match is None:
        raise ConfigError(f"`device` {spec!r} must be one of auto, cpu, mps, cuda, cuda:0, or cuda:0,cuda:1")
    devices = _cuda_devices()
    if not devices:
        raise ConfigError(f"`device='{piece}'`: torch sees no CUDA device here; pass `device='cpu'` or leave it out")
    if match[1] is None:
        return devices
    if int(match[1]) >= len(devices):
        raise ConfigError(f"`device='{piece}'`: this machine has cuda:0 to cuda:{len(devices) - 1}")
    return (devices[int(match[1])],)


def resolve_compute_dtype(choice: ComputeDtype | str, device: torch.device) -> torch.dtype:
    """Return the type that the encoder computes in; `auto` is bfloat16 on CUDA and float32 elsewhere.

    Examples:
        >>> resolve_compute_dtype("auto", torch.device("cpu"))
        torch.float32
    """
    chosen = ComputeDtype(choice)
    if chosen is ComputeDtype.AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype: torch.dtype = getattr(torch, chosen)
    return dtype


def default_max_batch_tokens(device_type: str, hidden_size: int) -> int:
    """Return the token budget of a pack.

    On a CPU it is small, so that the activations of a pack fit in the cache. On a GPU it is smaller for wider models.

    Examples:
        >>> default_max_batch_tokens("cpu", 768), default_max_batch_tokens("cuda", 768)
        (2048, 65536)
    """
    if device_type == "cpu":
        return _CPU_BATCH_TOKENS
    values = _MPS_BATCH_VALUES if device_type == "mps" else _GPU_BATCH_VALUES
    return max(_MIN_GPU_BATCH_TOKENS, min(_MAX_GPU_BATCH_TOKENS, values // hidden_size))


def share_threads(n_workers: int) -> None:
    """Limit this process to its share of the machine's threads, where `n_workers` processes compute at once."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // n_workers))


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute in the calling thread only, if the device is the CPU.

    The bits of a matrix product can depend on the number of threads (seen on AMD with AVX-512, 5 to 11 rows). And if
    other threads use the cores already, more threads only slow them down.
    """
    n_threads = torch.get_num_threads()
    if device.type != "cpu" or n_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
