"""Static vectors beside a contextual model: the settings of one more row in a recipe."""

from __future__ import annotations

from typing import Any

from bertfeat.encoder.checkpoint import open_checkpoint
from bertfeat.errors import ConfigError


def static_settings(model: str, static: str | None) -> dict[str, Any]:
    """Check that only `static` has static vectors; return its settings: each word that it lacks has zeros."""
    if open_checkpoint(model).static is not None:
        raise ConfigError(f"`model={model!r}` holds static vectors, without layers to compare; pass it as `static`")
    if static is None:
        return {}
    vectors = open_checkpoint(static).static
    if vectors is None:
        raise ConfigError(f"`static={static!r}` is a contextual model; name word vectors or a model2vec folder")
    return {"model": static, "layers": "0", "unknown_words": "null" if vectors.words is None else "zero"}
