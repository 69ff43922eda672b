"""Settings of an import of vectors from elsewhere: one frozen object, made from flags or from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Self, TypedDict

from bertfeat.choices import Level, Pooling, StoreDtype, VectorEncoding, VectorFormat, WordPooling
from bertfeat.config import parse_size
from bertfeat.encoder.layers import parse_layers
from bertfeat.errors import ConfigError, did_you_mean

# The layers of a file are numbered up to this.
_MAX_LAYER = 999
_ENUMS: dict[str, type[StrEnum]] = {
    "format": VectorFormat,
    "word_pooling": WordPooling,
    "pooling": Pooling,
    "store_dtype": StoreDtype,
    "vector_encoding": VectorEncoding,
}
_LEVELS = (Level.WORD, Level.SENTENCE)


class ImportSettings(TypedDict, total=False):
    """The fields of `ImportConfig`, as `import_vectors` takes them, without `level`."""

    format: str
    layers: str | int | Iterable[int] | None
    vector_columns: str | Iterable[str]
    word_pooling: str | None
    pooling: str | None
    model: str
    store_dtype: str
    vector_encoding: str
    shard_bytes: int | str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """Every setting of `bertfeat import`, checked on construction; see `import_vectors`.

    Raises:
        ConfigError: A value is not one of the choices.
    """

    level: Level
    format: VectorFormat = VectorFormat.AUTO
    layers: tuple[int, ...] | None = None
    vector_columns: tuple[str, ...] = ()
    word_pooling: WordPooling | None = None
    pooling: Pooling | None = None
    model: str = "imported"
    store_dtype: StoreDtype = StoreDtype.FLOAT16
    vector_encoding: VectorEncoding = VectorEncoding.ARRAY
    shard_bytes: int = 256_000_000

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise ConfigError(f"`level` {self.level!r} must be one of {', '.join(_LEVELS)}")
        self._set("level", Level(self.level))
        for name, kind in _ENUMS.items():
            if (value := getattr(self, name)) is not None:
                self._set(name, _member(name, kind, value))
        if self.layers is not None:
            self._set("layers", _numbers(self.layers))
        columns: Any = self.vector_columns
        self._set("vector_columns", (columns,) if isinstance(columns, str) else tuple(dict.fromkeys(columns)))
        self._set("model", str(self.model))
        if not self.model.strip():
            raise ConfigError(f"`model` {self.model!r} must be a name of what made the vectors")
        self._set("shard_bytes", parse_size(self.shard_bytes, "shard_bytes"))
        if self.shard_bytes < 1:
            raise ConfigError(f"`shard_bytes={self.shard_bytes}` is below 1")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Build a config from plain values; reject unknown keys.

        Raises:
            ConfigError: A key is not a setting, or a value is wrong.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in settings:
            if key not in known:
                hint = did_you_mean(key, known) or f"settings are {', '.join(known)}"
                raise ConfigError(f"no setting {key!r}; {hint}")
        return cls(**settings)

    def planned(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of a store, as plain JSON values."""
        values: dict[str, Any] = dataclasses.asdict(self) | {"levels": [str(self.level)]}
        # The inputs of a plan have their own formats.
        del values["level"], values["format"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _member(name: str, kind: type[StrEnum], value: object) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        hint = did_you_mean(value, kind)
        raise ConfigError(f"`{name}` {value!r} must be one of {', '.join(kind)}{f'; {hint}' if hint else ''}") from None


def _numbers(layers: Any) -> tuple[int, ...]:
    spec = (
        layers if isinstance(layers, str) else ",".join(map(str, layers if isinstance(layers, Iterable) else [layers]))
    )
    if "-" in spec or not spec.strip()[:1].isdecimal():
        raise ConfigError(f"`layers` {spec!r} must be the numbers of the file's layers, from 0 on: `layers='1..12'`")
    return parse_layers(spec, _MAX_LAYER, model="a file")
