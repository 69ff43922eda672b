"""Extensions: formats, poolings, heads, exports and models of other installed packages, found by entry points.

The name of an entry point is the name that a setting takes. Its object is the `Reader` class of a format, a
`PoolingMode`, the `Probe` class of a head, the `Format` of an export, or a function that returns a `PackagedModel`.
It is loaded when its name is used.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from bertfeat.errors import UserError


def names(kind: str) -> list[str]:
    """Return the names of a kind, such as `heads`, that installed packages add, sorted."""
    return sorted(point.name for point in metadata.entry_points(group=f"bertfeat.{kind}"))


def find(kind: str, name: str) -> metadata.EntryPoint | None:
    """Return the entry point of a name; None if no installed package adds it."""
    return next(iter(metadata.entry_points(group=f"bertfeat.{kind}", name=name)), None)


def load(kind: str, name: str) -> Any:
    """Return the object of a name."""
    point = find(kind, name)
    if point is None:
        raise UserError(f"no installed package adds {name!r} to bertfeat.{kind}; install the one that does")
    try:
        return point.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        reason = f"{point.value} cannot be loaded ({reason:.300})"
        raise UserError(f"{name!r} of bertfeat.{kind}: {reason}; install its package again") from error


def version_of(kind: str, name: str) -> str | None:
    """Return name and version of the package that adds a name; None if none does."""
    point = find(kind, name)
    return None if point is None or point.dist is None else f"{point.dist.name} {point.dist.version}"
