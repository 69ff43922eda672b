"""A hook at every stage of writing, which does nothing, where a kill drill can strike."""

from __future__ import annotations

from collections.abc import Callable


def _nothing(name: str) -> None:
    """Do nothing; a drill puts its own function in the place of `hook`."""


hook: Callable[[str], None] = _nothing


def step(name: str) -> None:
    """Mark that a stage has just been passed: `KIND.opened`, `.written`, `.synced`, `.renamed`, `.durable`."""
    hook(name)
