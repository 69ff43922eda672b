"""Run the bertfeat command line and write its own peak memory as the last line of standard error.

`ru_maxrss` of a child will not do: Linux hands a process the peak of the one that started it.

    python benchmarks/measured.py extract corpus.txt -o features
"""

from __future__ import annotations

import sys
from pathlib import Path

from bertfeat.cli import main


def peak_bytes() -> int:
    """Return this process's peak resident memory in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


if __name__ == "__main__":
    try:
        main()
    finally:
        print(f"\n{peak_bytes()}", file=sys.stderr)
