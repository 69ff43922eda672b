"""Free memory: that of the machine, or less under the limits of this process and its container."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes of memory that are free now on this machine, or fewer if a limit is lower.

    The limits are those of the control group (a container, a job of a batch system) and of the address space
    (`ulimit -v`).
    """
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
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            yield from _of_group(_CGROUPS, path, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in kinds.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _of_group(_CGROUPS / "memory", path, names)


def _of_group(root: Path, path: str, names: tuple[str, str, str]) -> Iterator[int]:
    """Yield what the limits of a control group and of its parents leave free.

    Args:
        root: The folder where groups are mounted.
        path: The group's path there; in a container it may be a path of the host, which does not exist here.
        names: The files with the limit and the use, and the field of memory.stat with the memory that the system can
            reclaim.
    """
    limit_name, used_name, reclaimable = names
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        try:
            limit = (folder / limit_name).read_text(encoding="ascii").strip()
            used = int((folder / used_name).read_text(encoding="ascii"))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        except (OSError, ValueError):
            stat, limit, used = {}, "max", 0
        if limit != "max":
            yield int(limit) - used + int(stat.get(reclaimable, 0))
        if folder == root:
            return
