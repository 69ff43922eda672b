"""The device that computes, its data type, and the number of tokens per forward pass.

torch is imported where it is needed: the plan of a run on the CPU is made without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from bertfeat.choices import ComputeDtype
from bertfeat.errors import ConfigError, RunError, is_out_of_memory
from bertfeat.memory import group_folders

if TYPE_CHECKING:
    import torch

_CUDA = re.compile(r"cuda(:\d{1,4})?(,cuda(:\d{1,4})?)*", re.ASCII)
_CPU_BATCH_TOKENS = 2048
# A GPU needs the same amount of work at every width: 65,536 tokens at the width of BERT-base.
_GPU_BATCH_VALUES = 65_536 * 768
_MPS_BATCH_VALUES = 8_192 * 768
_MIN_GPU_BATCH_TOKENS = 4_096
_MAX_GPU_BATCH_TOKENS = 131_072
# The devices of NVIDIA's and AMD's drivers on Linux; WSL has only NVIDIA's library.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")


def resolve_device(spec: str) -> tuple[torch.device, ...]:
    """Return the devices that the setting `device` names.

    `auto` is every CUDA device, else MPS, else the CPU; `cuda` is every CUDA device; several CUDA devices have commas.
    """
    pieces = spec.replace(" ", "")
    if spec not in ("auto", "cpu", "mps") and not _CUDA.fullmatch(pieces):
        raise ConfigError(f"`device` {spec!r} must be one of auto, cpu, mps, cuda, cuda:0, or cuda:0,cuda:1")
    import torch

    if _is_cpu(spec):
        return (torch.device("cpu"),)
    devices = _cuda_devices()
    if spec == "auto":
        return devices or (torch.device("mps" if torch.backends.mps.is_available() else "cpu"),)
    if spec == "mps":
        if not torch.backends.mps.is_available():
            raise ConfigError("`device='mps'`: this machine has no Apple GPU that torch can use; pass `device='cpu'`")
        return (torch.device("mps"),)
    if not devices:
        raise ConfigError(f"`device={spec!r}`: torch sees no CUDA device here; pass `device='cpu'` or leave it out")
    numbers = [piece.partition(":")[2] for piece in pieces.split(",")]
    if any(int(number or 0) >= len(devices) for number in numbers):
        raise ConfigError(f"`device={spec!r}`: this machine has cuda:0 to cuda:{len(devices) - 1}")
    chosen = ([devices[int(number)]] if number else devices for number in numbers)
    return tuple(dict.fromkeys(chain.from_iterable(chosen)))


def planned_kind(spec: str, *, elsewhere: bool) -> str:
    """Return the kind of device that a plan is made for: cpu, cuda or mps.

    If other machines compute (`elsewhere`), `cuda` needs no device here. torch is asked only where there may be a GPU.
    """
    if elsewhere and spec == "cuda":
        return "cuda"
    return "cpu" if _is_cpu(spec) else resolve_device(spec)[0].type


def _is_cpu(spec: str) -> bool:
    return spec == "cpu" or (spec == "auto" and not _may_have_gpu())


def _may_have_gpu() -> bool:
    """Return False where torch can see no GPU, whatever its build: on Linux without a driver of NVIDIA or AMD."""
    if sys.platform != "linux" or any(Path(place).exists() for place in _GPU_DRIVERS):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _cuda_devices() -> tuple[torch.device, ...]:
    import torch

    n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(torch.device("cuda", index) for index in range(n_devices))


def resolve_compute_dtype(
    choice: ComputeDtype | str, device_kind: str, device: str | None = None, *, is_bfloat16: bool = False
) -> str:
    """Return the name of the type that the encoder computes in.

    `auto` is bfloat16 if the weights in the files are (`is_bfloat16`), since it needs no more memory than they do. The
    CUDA devices of the setting `device` are asked; None stands for those of other machines.
    """
    if choice != ComputeDtype.AUTO:
        return str(choice)
    if is_bfloat16 or (device_kind == "cuda" and (device is None or all(map(_has_bfloat16, resolve_device(device))))):
        return "bfloat16"
    # Not float16: T5 and others have states beyond its range, and an infinite feature ends a run.
    return "float32"


def _has_bfloat16(device: torch.device) -> bool:
    """Return whether a CUDA device computes in bfloat16; NVIDIA's before Ampere emulate it, which is slow.

    This is the rule of `torch.cuda.is_bf16_supported`, which knows the current device only.
    """
    import torch

    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def has_fast_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16: AVX-512 BF16 or AMX."""
    import torch

    # These names are private to torch: a version without them counts as without the instructions.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def default_max_batch_tokens(device_type: str, hidden_size: int) -> int:
    """Return the token budget of a pack.

    On a CPU it is small, so that the activations of a pack fit in the cache. On a GPU it is smaller for wider models.
    """
    if device_type == "cpu":
        return _CPU_BATCH_TOKENS
    values = _MPS_BATCH_VALUES if device_type == "mps" else _GPU_BATCH_VALUES
    return max(_MIN_GPU_BATCH_TOKENS, min(_MAX_GPU_BATCH_TOKENS, values // hidden_size))


@contextlib.contextmanager
def memory_errors(device: torch.device, doing: str) -> Iterator[None]:
    """Turn a lack of memory into a `RunError` of one line; `doing` is what was done, and what to do about it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(f"out of memory on {device} while {doing}") from error


def n_cpus() -> int:
    """Return the processors that this process may use: its affinity, or less under the quota of its container."""
    # macOS does not report the affinity.
    allowed = getattr(os, "sched_getaffinity", None)
    limits = [float(len(allowed(0)) if allowed else os.cpu_count() or 1)]
    for folder in group_folders("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            # Without a limit, the quota is `max` or -1.
            with contextlib.suppress(OSError, ValueError):
                quota, period = " ".join((folder / name).read_text(encoding="ascii") for name in names).split()
                limits += [int(quota) / int(period)] if int(quota) > 0 else []
    return max(1, math.ceil(min(limits)))


def share_threads(n_workers: int) -> None:
    """Limit this process to its share of the processors, where `n_workers` processes compute at once."""
    import torch

    torch.set_num_threads(max(1, n_cpus() // n_workers))


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Compute in the calling thread only, if the device is the CPU.

    The bits of a matrix product can depend on the number of threads (seen on AMD with AVX-512, 5 to 11 rows). And if
    other threads use the cores already, more threads only slow them down.
    """
    import torch

    n_threads = torch.get_num_threads()
    if device.type != "cpu" or n_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
