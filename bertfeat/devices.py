"""Which device computes, in which type, and how many tokens it takes at once."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import torch

from bertfeat.config import ComputeDtype
from bertfeat.errors import ConfigError

_DTYPES = {
    ComputeDtype.FLOAT32: torch.float32,
    ComputeDtype.BFLOAT16: torch.bfloat16,
    ComputeDtype.FLOAT16: torch.float16,
}
_CUDA = re.compile(r"cuda(?::(\d{1,4}))?", re.ASCII)
_CPU_BATCH_TOKENS = 2048
# A GPU wants the same amount of work whatever the width: 65,536 tokens at the width of BERT-base.
_GPU_BATCH_VALUES = 65_536 * 768
_MPS_BATCH_VALUES = 8_192 * 768
_MIN_GPU_BATCH_TOKENS = 4_096
_MAX_GPU_BATCH_TOKENS = 131_072


def resolve_device(spec: str) -> tuple[torch.device, ...]:
    """Return the devices that `--device` names.

    Args:
        spec: `auto` (every CUDA device, else MPS, else the CPU), `cpu`, `mps`, `cuda` (every one), `cuda:1`, or several
            of the last with commas.

    Raises:
        ConfigError: A device is malformed or not there.

    Example:
        >>> resolve_device("cpu")
        (device(type='cpu'),)
    """
    if spec == "auto":
        return _auto()
    if spec == "cpu":
        return (torch.device("cpu"),)
    if spec == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError("--device mps: this machine has no Apple GPU that torch can use; pass --device cpu")
        return (torch.device("mps"),)
    devices: dict[torch.device, None] = {}
    for piece in spec.replace(" ", "").split(","):
        devices.update(dict.fromkeys(_cuda(piece, spec)))
    return tuple(devices)


def planned_device(spec: str, *, elsewhere: bool) -> torch.device:
    """Return the device that a plan is made for.

    Args:
        spec: As `resolve_device` takes it.
        elsewhere: Other machines compute, which may have a CUDA device where this one has none.

    Raises:
        ConfigError: A device is malformed or not there.

    Example:
        >>> planned_device("cuda", elsewhere=True)
        device(type='cuda')
    """
    return torch.device("cuda") if elsewhere and spec == "cuda" else resolve_device(spec)[0]


def _auto() -> tuple[torch.device, ...]:
    if torch.cuda.is_available():
        return tuple(torch.device("cuda", index) for index in range(torch.cuda.device_count()))
    return (torch.device("mps" if torch.backends.mps.is_available() else "cpu"),)


def _cuda(piece: str, spec: str) -> tuple[torch.device, ...]:
    match = _CUDA.fullmatch(piece)
    if match is None:
        raise ConfigError(f"--device {spec!r} is none of auto, cpu, mps, cuda, cuda:0, or cuda:0,cuda:1")
    if not torch.cuda.is_available():
        raise ConfigError(f"--device {piece}: torch sees no CUDA device here; pass --device cpu or auto")
    n_devices = torch.cuda.device_count()
    if match[1] is None:
        return tuple(torch.device("cuda", index) for index in range(n_devices))
    if int(match[1]) >= n_devices:
        raise ConfigError(f"--device {piece}: this machine has cuda:0 to cuda:{n_devices - 1}")
    return (torch.device("cuda", int(match[1])),)


def resolve_compute_dtype(choice: ComputeDtype | str, device: torch.device) -> torch.dtype:
    """Return the type that the encoder computes in; `auto` is bfloat16 on CUDA and float32 elsewhere.

    Example:
        >>> resolve_compute_dtype("auto", torch.device("cpu"))
        torch.float32
    """
    chosen = ComputeDtype(choice)
    if chosen is ComputeDtype.AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[chosen]


def default_max_batch_tokens(device_type: str, hidden_size: int) -> int:
    """Return the token budget of a pack.

    On a CPU it is small, so that a pack's activations stay near the cache; a GPU gets fewer tokens the wider the model.

    Example:
        >>> default_max_batch_tokens("cpu", 768), default_max_batch_tokens("cuda", 768)
        (2048, 65536)
    """
    if device_type == "cpu":
        return _CPU_BATCH_TOKENS
    values = _MPS_BATCH_VALUES if device_type == "mps" else _GPU_BATCH_VALUES
    return max(_MIN_GPU_BATCH_TOKENS, min(_MAX_GPU_BATCH_TOKENS, values // hidden_size))


def share_threads(n_workers: int) -> None:
    """Give this process its share of the machine's threads.

    Args:
        n_workers: Processes that compute on this machine at once.
    """
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // n_workers))


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute in the calling thread alone where the device is the CPU.

    The bits of a matrix product can depend on how many threads share it (seen on AMD with AVX-512, 5 to 11 rows). And
    where others have the cores, threads called for help only fight them.
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
