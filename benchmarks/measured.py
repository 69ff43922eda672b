"""Run the bertfeat command line and write its own peak memory as the last line of standard error.

`ru_maxrss` of a child will not do: Linux hands a process the peak of the one that started it.

    python benchmarks/measured.py extract corpus.txt -o features
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from bertfeat.cli import main


def peak_bytes() -> int:
    """Return this process's peak resident memory in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        # macOS counts in bytes, and children do not inherit the peak.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = status.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    try:
        main()
    finally:
        print(f"\n{peak_bytes()}", file=sys.stderr)
