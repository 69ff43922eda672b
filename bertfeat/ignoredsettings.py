"""Settings that have no effect beside others: which they are, and why, in one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bertfeat.choices import Level, OnOverlong, Pooling, Runner

if TYPE_CHECKING:
    from bertfeat.config import ExtractConfig

# Poolings that give a text one vector of the last layer, whatever the layers.
_OF_LAST_LAYER = (Pooling.MODEL, Pooling.POOLER)
_LAST = "-1"
#: Poolings over which it matters whether special tokens count; `model` refuses the setting itself.
COUNTING = (Pooling.MEAN, Pooling.MAX, Pooling.WEIGHTEDMEAN, Pooling.MODEL)


class _Rule(NamedTuple):
    """Settings that are ignored in a case, with the reason and the remedy, both for messages."""

    names: tuple[str, ...]
    is_ignored: Callable[[ExtractConfig], bool]
    reason: str


def _has_one_vector(config: ExtractConfig) -> bool:
    return config.levels == (Level.SENTENCE,) and config.pooling in _OF_LAST_LAYER


_RULES = (
    _Rule(
        ("word_pooling", "unknown_words", "label_column"),
        lambda config: Level.WORD not in config.levels,
        "without the word level; add that to `levels`, or leave this out",
    ),
    _Rule(
        ("pooling", "include_special_tokens", "keep_columns"),
        lambda config: Level.SENTENCE not in config.levels,
        "without the sentence level; add that to `levels`, or leave this out",
    ),
    _Rule(
        ("include_special_tokens",),
        lambda config: config.pooling not in COUNTING,
        "with a pooling that takes one token; leave it out, or pass `pooling='mean'`",
    ),
    _Rule(
        ("layers",),
        lambda config: _has_one_vector(config) and config.layers != _LAST,
        "with a pooling that reads the last layer; leave it out, or pass `pooling='mean'`",
    ),
    _Rule(
        ("combine",),
        _has_one_vector,
        "with a pooling that gives one vector; leave it out, or pass `pooling='mean'`",
    ),
    _Rule(
        ("document_column",),
        lambda config: not config.document_context,
        "without `document_context`; pass both or neither",
    ),
    _Rule(
        ("stride",),
        # With document context, it also says how many tokens of neighbours a sentence has at least.
        lambda config: config.on_overlong is not OnOverlong.WINDOW and not config.document_context,
        "where no text has two windows; leave it out, or pass `on_overlong='window'`",
    ),
    _Rule(("cache_size",), lambda config: config.cache is None, "without `cache`; add it"),
    _Rule(("ray_address",), lambda config: config.runner is not Runner.RAY, "without `runner='ray'`; add it"),
)


def ignored_settings(config: ExtractConfig) -> dict[str, str]:
    """Return the settings that have no effect beside the others, given or not, with the reason."""
    rules = [rule for rule in reversed(_RULES) if rule.is_ignored(config)]
    return {name: rule.reason for rule in rules for name in rule.names}


def is_asked(value: object) -> bool:
    """Return whether a value asks for something: None, False and an empty text or list do not."""
    return not (value is None or value is False or (isinstance(value, str | tuple | list) and not value))
