"""The machine that a figure was measured on, and its ceiling at that moment."""

from __future__ import annotations

import datetime
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory, versions and date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("bertfeat", "torch", "transformers", "polars", "pyarrow")},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def gemm_gflops(n_tokens: int = 2048, hidden: int = 384, inner: int = 1536, seconds: float = 1.0) -> float:
    """Return the rate of plain float32 matrix products of a BERT block's shapes, in GFLOP/s."""
    x, up, down = torch.randn(n_tokens, hidden), torch.randn(hidden, inner), torch.randn(inner, hidden)
    (x @ up) @ down
    start, n_done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        (x @ up) @ down
        n_done += 1
    return 4 * n_tokens * hidden * inner * n_done / (time.perf_counter() - start) / 1e9
