"""Options of a recipe that would be ignored: they are refused, as those of the commands are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertfeat.cli.options import refuse_given
from bertfeat.config import ExtractConfig
from bertfeat.ignoredsettings import ignored_settings

__all__ = ["config_of_pooling", "refuse_given", "refuse_of_poolings"]


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
    refuse_given(ignored, f"has no meaning with --poolings {','.join(poolings)}; leave it out")
