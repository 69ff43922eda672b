"""Completion in a shell: commands, options and choices by click, and file names everywhere else."""

from __future__ import annotations

from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)


class _WithFiles(ShellComplete):
    """Completion that offers file names where click knows no value, such as INPUT, STORE and DIR."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        """Return the values that fit at the cursor."""
        found = super().get_completions(args, incomplete)
        return found or [CompletionItem(incomplete, type="file")]


def complete_files() -> None:
    """Use this completion in all shells."""
    for shell in (BashComplete, ZshComplete, FishComplete):
        add_completion_class(type(shell.__name__, (_WithFiles, shell), {}))
