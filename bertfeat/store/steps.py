"""A no-op hook at every stage of writing, where a kill drill can strike."""

from __future__ import annotations

from collections.abc import Callable

STEPS = (
    "plan.written",
    "plan.synced",
    "plan.renamed",
    "plan.durable",
    "part.written",
    "part.synced",
    "part.linked",
    "part.unlinked",
    "part.durable",
    "quarantine.written",
    "quarantine.synced",
    "quarantine.renamed",
    "quarantine.durable",
    "receipt.written",
    "receipt.synced",
    "receipt.renamed",
    "receipt.durable",
    "manifest.written",
    "manifest.synced",
    "manifest.renamed",
    "manifest.durable",
)


def _nothing(name: str) -> None:
    """Do nothing; a drill puts its own function in the place of `hook`."""


hook: Callable[[str], None] = _nothing


def step(name: str) -> None:
    """Mark that the stage `name` (one of `STEPS`) has just been passed."""
    hook(name)
