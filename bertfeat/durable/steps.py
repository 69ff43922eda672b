"""Hook at every stage of writing: it does nothing, and kill drills replace it."""

from __future__ import annotations

from collections.abc import Callable


def _nothing(name: str) -> None:
    """Do nothing; a drill replaces `hook` with its own function."""


hook: Callable[[str], None] = _nothing


def step(name: str) -> None:
    """Report that a stage has just been passed: `KIND.opened`, `.written`, `.synced`, `.renamed`, `.durable`."""
    hook(name)
