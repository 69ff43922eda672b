"""Seconds, processor seconds and peak memory of a function in a process of its own.

    python -m benchmarks.measured MODULE:FUNCTION JSON      prints one line of JSON at the end

`ru_maxrss` of a child will not do: Linux hands a process the peak of the one that started it. The standard library is
all that is imported, so that this runs in the environments of peers too.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def measure(function: str, *, python: str = sys.executable, **settings: Any) -> dict[str, Any]:
    """Call a function in a new process.

    Args:
        function: `module:name`, of a function that returns JSON values by name, or nothing.
        python: The interpreter, with the libraries that the function needs.
        settings: Its arguments, as JSON values.

    Returns:
        What it returns, `wall_s`, `cpu_s` of all threads and ended children, `peak_bytes`, and `base_bytes`, the peak
        before the call.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [python, "-m", "benchmarks.measured", function, json.dumps(settings, default=str)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Call, and return the result with `wall_s`, `cpu_s` and `peak_bytes` of this process."""
    cpu, start = cpu_seconds(), time.perf_counter()
    result = call()
    wall_s = time.perf_counter() - start
    return result, {"wall_s": wall_s, "cpu_s": cpu_seconds() - cpu, "peak_bytes": peak_bytes()}


def peak_bytes(process: str = "self") -> int:
    """Return the peak resident memory of this process, or of another where there is /proc."""
    status = Path("/proc", process, "status")
    if not status.exists():
        # macOS counts in bytes, and children do not inherit the peak.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = status.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def cpu_seconds() -> float:
    """Return the processor seconds of this process, all threads and ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Call the function of the command line."""
    module, _, name = sys.argv[1].partition(":")
    function, base = getattr(importlib.import_module(module), name), peak_bytes()
    result, figures = timed(lambda: function(**json.loads(sys.argv[2])))
    print("\n" + json.dumps({**(result or {}), **figures, "base_bytes": base}))


if __name__ == "__main__":
    main()
