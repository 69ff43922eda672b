"""The versions and the machine, as `bertfeat --version --verbose` prints them for a bug report."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

import torch

from bertfeat._version import __version__
from bertfeat.devices import resolve_device
from bertfeat.display import facts
from bertfeat.memory import free_memory


def bug_report() -> str:
    """Return the versions of bertfeat, Python and every dependency, by extra, and what computes."""
    values = {
        "bertfeat": __version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}",
        "cores": f"{os.cpu_count()} ({torch.backends.cpu.get_cpu_capability()})",
        "threads": torch.get_num_threads(),
        "free memory bytes": free_memory(),
        "devices": [
            f"{one} ({torch.cuda.get_device_name(one)})" if one.type == "cuda" else str(one)
            for one in resolve_device("auto")
        ],
    }
    return facts(values | {extra: list(map(_installed, names)) for extra, names in _requirements().items()})


def _requirements() -> dict[str, list[str]]:
    """Return the names of the packages that bertfeat requires, then those of each extra; without dev, docs and web."""
    found: dict[str, list[str]] = {}
    for requirement in requires("bertfeat") or ():
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        found.setdefault(f"extra {extra[1]}" if extra else "requires", []).append(name)
    return {extra: names for extra, names in found.items() if extra not in ("extra dev", "extra docs", "extra web")}


def _installed(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} (not installed)"
