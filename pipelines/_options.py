"""Commands of the recipes, and options of theirs that would be ignored: they are refused, as those of bertfeat are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bertfeat.cli.options import refuse_given
from bertfeat.config import ExtractConfig
from bertfeat.extras import require
from bertfeat.ignoredsettings import ignored_settings
from bertfeat.pipelines._outputs import alone_in

__all__ = ["config_of_pooling", "recipe", "refuse_given", "refuse_of_poolings"]


def recipe(*libraries: str) -> Callable[[Callable[..., None]], click.Command]:
    """Return the decorator of a recipe's command.

    The libraries, such as `sklearn`, are optional ones that it needs; `--help` works without them. No other recipe
    writes to its OUT while it runs.
    """
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return click.command(cls=_Recipe, libraries=libraries, context_settings=settings)


class _Recipe(click.Command):
    def __init__(self, *names: Any, libraries: Sequence[str], **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self._libraries = libraries

    def invoke(self, ctx: click.Context) -> Any:
        """Run the recipe, unless a library is missing or another process writes to OUT."""
        require(*self._libraries, what="this recipe needs")
        out = ctx.params["out"]
        with contextlib.nullcontext() if out is None else alone_in(Path(out)):
            return super().invoke(ctx)


def config_of_pooling(pooling: str, settings: Mapping[str, Any]) -> ExtractConfig:
    """Return the settings of one of several extractions; what this pooling ignores, another may need."""
    return ExtractConfig.settled({**settings, "pooling": pooling})


def refuse_of_poolings(poolings: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Refuse options that all poolings ignore.

    Raises:
        UsageError: Such an option is given.
    """
    each = [{*ignored_settings(config_of_pooling(pooling, settings))} for pooling in poolings]
    ignored: set[str] = set.intersection(*each)
    refuse_given(ignored, f"has no effect with --poolings {','.join(poolings)}; leave it out")
