"""The settings of an extraction: one frozen object, made from flags, JSON or Python."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

from bertfeat.choices import (
    BadRows,
    Combine,
    ComputeDtype,
    CorpusFormat,
    Level,
    OnOverlong,
    Pooling,
    Runner,
    StoreDtype,
    UnknownWords,
    VectorEncoding,
    WordPooling,
)
from bertfeat.errors import ConfigError, did_you_mean
from bertfeat.ignoredsettings import ignored_settings, is_asked

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

# Settings that decide where and how fast a shard runs, but not its bytes: a resumed run may change them.
_RUN_ONLY = ("device", "workers", "runner", "ray_address", "cache", "cache_size")
# The plan has the text of the prompt instead.
_RESOLVED_LATER = ("prompt", "prompt_name")
_TEXT_COLUMNS = ("text_column", "text_pair_column", "id_column", "document_column", "label_column")
# Seeds fit a signed integer of 64 bits.
MAX_SEED = 2**63 - 1
_DELIMITERS = {"tab": "\t", "\\t": "\t"}


@dataclass(frozen=True, kw_only=True)
class ExtractConfig:
    """Every setting of `bertfeat extract`, checked on construction.

    Enums may be given as strings, and tuples as lists or comma-separated strings. `None` selects a default that
    depends on the model (`max_length`, `stride`) or on the device (`max_batch_tokens`, `workers`). `combine` defaults
    to `none,concat` for the layers `last4` and to `none` for others. An empty `prompt` stands for no prompt. With
    `no_header`, the columns of .csv and .tsv are `column_1`, `column_2`, ..., and a number names the same column.
    `delimiter` is one ASCII character, or `tab`. `limit` counts the rows of all inputs, bad rows included. `cache` is a
    folder on a local disk where vectors are kept for later runs, and `cache_size` its largest size in bytes. With
    `random_weights`, a seed, the weights of the model are drawn afresh, and its trained ones are not read.

    Raises:
        ConfigError: A value is not one of the choices, is out of range, contradicts another value, or would be ignored
            beside it.

    Examples:
        >>> ExtractConfig(levels="word,sentence", layers=[-1, 0]).layers
        '-1,0'
    """

    format: CorpusFormat = CorpusFormat.AUTO
    text_column: str = "text"
    text_pair_column: str | None = None
    text_pairs: bool = False
    id_column: str | None = None
    keep_columns: tuple[str, ...] = ()
    is_split_into_words: bool = False
    label_column: str | None = None
    document_column: str | None = None
    no_header: bool = False
    delimiter: str | None = None
    limit: int | None = None
    bad_rows: BadRows = BadRows.ERROR

    model: str = "minilm"
    revision: str | None = None
    random_weights: int | None = None

    levels: tuple[Level, ...] = (Level.TOKEN,)
    layers: str = "last4"
    combine: tuple[Combine, ...] = ()
    word_pooling: WordPooling = WordPooling.FIRST
    unknown_words: UnknownWords = UnknownWords.NULL
    pooling: Pooling = Pooling.MEAN
    include_special_tokens: bool = False
    prompt: str | None = None
    prompt_name: str | None = None
    max_length: int | None = None
    stride: int | None = None
    on_overlong: OnOverlong = OnOverlong.WINDOW
    document_context: bool = False
    store_dtype: StoreDtype = StoreDtype.FLOAT16
    vector_encoding: VectorEncoding = VectorEncoding.ARRAY
    compute_dtype: ComputeDtype = ComputeDtype.AUTO
    max_batch_tokens: int | None = None
    shard_bytes: int = 256_000_000

    device: str = "auto"
    workers: int | None = None
    runner: Runner = Runner.LOCAL
    ray_address: str | None = None
    cache: str | Path | None = None
    cache_size: int = 10_000_000_000

    def __post_init__(self) -> None:
        self._normalise()
        self._check_types()
        by_layers = (Combine.NONE, Combine.CONCAT) if self.layers == "last4" else (Combine.NONE,)
        self._set("combine", by_layers if self.combine == () else _ordered(Combine, "combine", self.combine))
        for name, least in _MINIMA.items():
            _check_int(name, getattr(self, name), least)
        if (self.random_weights or 0) > MAX_SEED:
            raise ConfigError(f"`random_weights={self.random_weights}` is above {MAX_SEED}, the largest seed")
        self._check_texts()
        self._set("delimiter", _delimiter(self.delimiter))
        if self.no_header:
            self._name_columns_by_number()
        self._check_together()
        self._check_context()
        usual = {field.name: field.default for field in dataclasses.fields(self)} | {"combine": by_layers}
        self.refuse_ignored({name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]})
        self._check_runner()
        self._check_cache()

    def _normalise(self) -> None:
        """Turn the values that decide which others are ignored into enums and tuples."""
        for name, kind in _ENUMS.items():
            self._set(name, _enum(name, kind, getattr(self, name)))
        self._set("levels", _ordered(Level, "levels", self.levels))
        self._set("keep_columns", _names("keep_columns", self.keep_columns))
        self._set("layers", _layers_text(self.layers))

    def __repr__(self) -> str:
        usual = type(self)(layers=self.layers)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown = [f"{k}={v!r}" for k, v in given.items() if v != getattr(usual, k) or (k == "layers" and v != "last4")]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_types(self) -> None:
        for name, kind in _HINTS.items():
            what = _TYPE_NAMES.get(kind)
            if what and not isinstance(getattr(self, name), kind):
                raise ConfigError(f"`{name}` {getattr(self, name)!r:.60} is not {what}")

    def _check_texts(self) -> None:
        for name in (*_TEXT_COLUMNS, "keep_columns", "delimiter", *_RESOLVED_LATER):
            value = getattr(self, name)
            for text in (value,) if isinstance(value, str) else value or ():
                if not text.isascii() and text != text.encode(errors="replace").decode():
                    what = "it" if name.startswith("prompt") else "the column's name"
                    raise ConfigError(f"`{name}` {text!r} is not valid UTF-8; pass {what} as UTF-8")

    def _name_columns_by_number(self) -> None:
        """Replace the numbers of columns, which no header names, by names."""
        for name in _TEXT_COLUMNS:
            if value := getattr(self, name):
                self._set(name, _numbered(value))
        self._set("keep_columns", tuple(map(_numbered, self.keep_columns)))

    def _check_together(self) -> None:
        if self.text_pair_column and self.text_pairs:
            raise ConfigError("`text_pair_column` and `text_pairs` both name a second text; pass one of them")
        for name in ("is_split_into_words", "document_context"):
            if getattr(self, name) and (self.text_pair_column or self.text_pairs):
                raise ConfigError(f"`{name}` takes no second text; drop `text_pair_column` or `text_pairs`")
        if self.pooling is Pooling.MODEL and self.include_special_tokens:
            raise ConfigError(
                "`pooling='model'` counts special tokens as the model does; drop `include_special_tokens`"
            )
        if self.prompt is not None and self.prompt_name is not None:
            raise ConfigError("`prompt` and `prompt_name` both give a prompt; pass one of them")

    def _check_context(self) -> None:
        if not self.document_context:
            return
        if self.include_special_tokens:
            raise ConfigError(
                "`include_special_tokens` cannot be used with `document_context`, where sentences share the special "
                "tokens; drop one of them"
            )
        if self.pooling not in (Pooling.MEAN, Pooling.MAX, Pooling.WEIGHTEDMEAN) and Level.SENTENCE in self.levels:
            raise ConfigError(
                f"`pooling='{self.pooling}'` cannot be used with `document_context`, where sentences share the special "
                "tokens; use mean or max"
            )
        if self.prompt or self.prompt_name is not None:
            raise ConfigError(
                "`prompt` cannot be used with `document_context`, where sentences share a window; drop one of them"
            )

    def _check_runner(self) -> None:
        on_ray = self.runner is Runner.RAY
        if on_ray and "cuda:" in self.device:
            raise ConfigError(f"`device='{self.device}'` numbers devices, which Ray assigns; pass `device='cuda'`")
        if self.ray_address is None or (on_ray and self.ray_address in ("auto", "local")):
            return
        host, _, port = self.ray_address.removeprefix("ray://").rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"`ray_address` {self.ray_address!r} must be one of auto, local, HOST:PORT, ray://HOST:PORT"
            )

    def _check_cache(self) -> None:
        if isinstance(self.cache, Path):
            self._set("cache", str(self.cache))
        if self.cache is not None and (not isinstance(self.cache, str) or not self.cache):
            raise ConfigError(f"`cache` {self.cache!r:.60} is not the name of a folder")

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> ExtractConfig:
        """Build a config from plain values; reject unknown keys.

        Raises:
            ConfigError: A key is not a setting (the message suggests the nearest one), or a value is wrong.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for key in settings:
            if key not in known:
                hint = did_you_mean(key, known) or f"settings are {', '.join(known)}"
                raise ConfigError(f"no setting {key!r}; {hint}")
        return cls(**settings)

    @classmethod
    def of(cls, config: ExtractConfig | None, settings: Mapping[str, Any]) -> ExtractConfig:
        """Return the config that was given as an object, or build it from settings by name.

        Raises:
            ConfigError: Both were given, a key is not a setting, or a value is wrong or would be ignored, even if it is
                the default.

        Examples:
            >>> ExtractConfig.of(None, {"max_length": 64}).max_length
            64
        """
        if config is None:
            config = cls.from_dict(settings)
            config.refuse_ignored(settings)
            return config
        if settings:
            raise ConfigError(
                f"setting {next(iter(settings))!r} beside config; put it into config, or pass all by name"
            )
        return config

    @classmethod
    def settled(cls, settings: Mapping[str, Any], given: Collection[str] = ()) -> ExtractConfig:
        """Build a config from values that were recorded or derived: those that would be ignored take their defaults.

        Args:
            settings: The values.
            given: The names of those that a user asked for, which are refused instead.

        Raises:
            ConfigError: See `from_dict`.

        Examples:
            >>> ExtractConfig.settled({"levels": "word", "pooling": "max"}).pooling
            'mean'
        """
        draft = object.__new__(cls)
        for field in dataclasses.fields(cls):
            draft._set(field.name, settings.get(field.name, field.default))
        draft._normalise()
        dropped = {*ignored_settings(draft)} - {*given}
        # Those of the draft: an iterator of layers can be read once.
        return cls.from_dict({name: getattr(draft, name, None) for name in settings if name not in dropped})

    def adapted(self, **changes: Any) -> ExtractConfig:
        """Return the settings with other values; settings that are ignored beside these take their defaults."""
        return self.settled({**vars(self), **changes})

    def refuse_ignored(self, given: Mapping[str, Any]) -> None:
        """Refuse settings that a user asked for and that have no effect beside the others.

        Raises:
            ConfigError: The message names the first one, its value, why it has none, and what to do.
        """
        for name, reason in ignored_settings(self).items():
            if name in given and is_asked(given[name]):
                value = _plain(getattr(self, name))
                shown = ",".join(map(str, value)) if isinstance(value, list) else value
                raise ConfigError(f"`{name}={shown!r}` has no effect {reason}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, from which `from_dict` builds an equal config.

        They have all defaults, so that `extract` takes the config, not the values by name.
        """
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def planned(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of a store, as plain JSON values."""
        return {name: value for name, value in self.to_dict().items() if name not in _RUN_ONLY + _RESOLVED_LATER}


_HINTS = get_type_hints(ExtractConfig)
_ENUMS = {name: kind for name, kind in _HINTS.items() if isinstance(kind, type) and issubclass(kind, StrEnum)}
_TYPE_NAMES = {str: "text", str | None: "text", bool: "True or False", int: "a whole number"}
_MINIMA = {
    "limit": 1,
    "random_weights": 0,
    "max_length": 1,
    "stride": 0,
    "max_batch_tokens": 1,
    "shard_bytes": 1,
    "workers": 1,
    "cache_size": 1_000_000,
}


def flag(name: str) -> str:
    """Return the command-line flag of a setting.

    Examples:
        >>> flag("levels"), flag("store_dtype")
        ('--level', '--store-dtype')
    """
    singular = {"levels": "level", "inputs": "input", "vector_columns": "vector_column"}
    return "--" + singular.get(name, name).replace("_", "-")


def parse_size(value: int | str, name: str = "") -> int:
    """Return a number of bytes; a text may have a decimal unit. `name` is the setting, for the message.

    Raises:
        ConfigError: `value` is not a size.

    Examples:
        >>> parse_size("1.5 GB"), parse_size("256mb"), parse_size(1000)
        (1500000000, 256000000, 1000)
    """
    if isinstance(value, int):
        return value
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ConfigError(f"{name} {value!r} is not a size; write for example 256MB".lstrip())
    # Decimal, because the float 0.29 times a billion is not a whole number.
    return int(Decimal(found[1]) * _FACTORS[found[2].upper()])


def _enum(name: str, kind: type[StrEnum], value: object) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        hint = did_you_mean(value, kind)
        choices = f"must be one of {', '.join(kind)}" + (f"; {hint}" if hint else "")
        raise ConfigError(f"`{name}` {value!r} {choices}") from None


def _delimiter(value: str | None) -> str | None:
    delimiter = _DELIMITERS.get(str(value), value)
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
        raise ConfigError(f"`delimiter` {value!r} must be one ASCII character, such as ; or |, or tab")
    return delimiter


def _numbered(name: str) -> str:
    return f"column_{name.lstrip('0') or 0}" if name.isascii() and name.isdecimal() else name


def _names(name: str, value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    for part in parts:
        if not isinstance(part, str):
            raise ConfigError(f"`{name}` {part!r:.60} is not text")
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _ordered(kind: type[StrEnum], name: str, value: Any) -> tuple[StrEnum, ...]:
    """Return the members named in `value` in the order of the enum, so that equal requests are equal."""
    chosen = {_enum(name, kind, part) for part in _names(name, value)}
    if not chosen:
        raise ConfigError(f"`{name}` is empty; choose from {', '.join(kind)}")
    return tuple(member for member in kind if member in chosen)


def _layers_text(value: str | int | Iterable[int]) -> str:
    """Return layers as text; whether they are layers is known with the model."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        value = ",".join(map(str, value))
    return str(value).replace(" ", "")


def _check_int(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"`{name}` {value!r} is not a whole number")
    if value < least:
        raise ConfigError(f"`{name}={value}` is below {least}")


def _plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
