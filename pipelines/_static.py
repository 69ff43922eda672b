"""Static vectors beside a contextual model: the settings of one more row in a recipe."""

from __future__ import annotations

from typing import Any

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import ConfigError


def check_contextual(name: str) -> None:
    """Check that a model has layers to compare.

    Raises:
        CheckpointError: The model cannot be used.
        ConfigError: The model is one of static vectors.
    """
    if open_checkpoint(name).static is not None:
        raise ConfigError(f"`model={name!r}` holds static vectors, without layers to compare; pass it as `static`")


def static_settings(name: str | None, level: str) -> dict[str, Any]:
    """Return the settings of an extraction; words that a file lacks have zeros, so that each word has a prediction.

    Sentences are the means of their known words.

    Raises:
        CheckpointError: The vectors cannot be read.
        ConfigError: The model is not one of static vectors.
    """
    if name is None:
        return {}
    checkpoint = open_checkpoint(name)
    if checkpoint.static is None:
        kind = checkpoint.family.model_type
        raise ConfigError(f"`static={name!r}`: {kind} is a contextual model; name word vectors or a model2vec folder")
    has_zeros = checkpoint.static.words is not None and level == "word"
    return {"model": name, "layers": "0", "unknown_words": "zero" if has_zeros else "null"}
