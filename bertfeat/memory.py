"""Free memory: that of the machine, or less under the limits of this process and its container."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
# The files with the limit and the use of a control group, and the field of memory.stat with what the system can
# reclaim; of versions 2 and 1. Without a limit, there is a word or a number beyond all memory.
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory() -> int:
    """Return the bytes of memory that are free now, under the limits of `ulimit -v` and of the control group."""
    return max(0, min([_of_machine(), *_of_groups(), *_of_address_space()]))


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # macOS does not report free memory.
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf(pages)


def _of_address_space() -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        n_pages = 0
    yield limit - n_pages * os.sysconf("SC_PAGE_SIZE")


def _of_groups() -> Iterator[int]:
    """Yield what the limits of the control groups leave free, with the memory that the system can reclaim."""
    for folder in group_folders("memory"):
        for limit_name, used_name, reclaimable in _MEMORY_FILES:
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / limit_name).read_text(encoding="ascii"))
                used = int((folder / used_name).read_text(encoding="ascii"))
                lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
                yield limit - used + int(dict(line.split() for line in lines).get(reclaimable, 0))


def group_folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups and their parents that limit a kind of resource: memory, cpu.

    In a container, a path may be one of the host, which does not exist here.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and controller not in kinds.split(","):
            continue
        # Version 1 has a hierarchy for each kind.
        root = _CGROUPS / controller if kinds else _CGROUPS
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))
