"""Commands of the recipes, and warnings of options of theirs that have no effect."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bertfeat.cli.options import refuse_given
from bertfeat.config import ExtractConfig
from bertfeat.errors import BertfeatWarning, require
from bertfeat.pipelines._outputs import alone_in

__all__ = ["config_of_pooling", "recipe", "refuse_given", "warn_of_poolings"]


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
        out = ctx.params.get("out")
        with contextlib.nullcontext() if out is None else alone_in(Path(out)):
            return super().invoke(ctx)


def config_of_pooling(pooling: str, settings: Mapping[str, Any]) -> ExtractConfig:
    """Return the settings of one of several extractions; what this pooling ignores, another may need."""
    return ExtractConfig.from_dict({**settings, "pooling": pooling}).effective()


def warn_of_poolings(poolings: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Warn of options of the command line that have no effect with any of the poolings."""
    source = click.get_current_context().get_parameter_source
    each = [{*ExtractConfig.from_dict({**settings, "pooling": pooling}).ignored()} for pooling in poolings]
    for name in sorted(set.intersection(*each)):
        if source(name) is ParameterSource.COMMANDLINE:
            said = f"`{name}` has no effect with `poolings={','.join(poolings)}`; leave it out"
            warnings.warn(BertfeatWarning(said), stacklevel=2)
