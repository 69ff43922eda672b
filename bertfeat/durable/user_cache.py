"""The user's cache: files that save time and are made again if they are lost."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bertfeat.durable.publication import publish_bytes
from bertfeat.errors import RunError


def cache_path(*names: str) -> Path:
    """Return a place in the cache, which is under `$BERTFEAT_CACHE` or `~/.cache/bertfeat`."""
    folder = os.environ.get("BERTFEAT_CACHE")
    return (Path(folder) if folder else Path.home() / ".cache" / "bertfeat").joinpath(*names)


def write_cached(name: str, data: bytes) -> None:
    """Write a file of the cache, named relative to it; one that cannot be written only costs time."""
    with contextlib.suppress(OSError, RuntimeError, RunError):
        path = cache_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        publish_bytes(path, data, kind="cache")


def read_cached(name: str) -> bytes | None:
    """Return the content of a file of the cache, or None."""
    try:
        return cache_path(name).read_bytes()
    except (OSError, RuntimeError):
        return None
