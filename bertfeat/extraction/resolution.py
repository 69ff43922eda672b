"""Settings that depend on the model, its tokenizer or the device: their defaults, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bertfeat.choices import Combine, Level, Pooling, Runner
from bertfeat.config import ExtractConfig
from bertfeat.devices import default_max_batch_tokens, planned_kind, resolve_compute_dtype
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.families import STATIC, family_of
from bertfeat.encoder.layers import feature_columns, parse_layers
from bertfeat.encoder.sentencemodel import SentenceModel
from bertfeat.errors import ConfigError
from bertfeat.levels import EMBEDDING
from bertfeat.records import FeatureColumn, ModelInfo
from bertfeat.text.spans import WindowLimits
from bertfeat.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings that depend on the model or the device, with their defaults filled in."""

    model: ModelInfo
    config_sha256: str
    layers: tuple[int, ...]
    columns: Mapping[Level, tuple[FeatureColumn, ...]]
    limits: WindowLimits
    compute_dtype: str
    device_kind: str
    max_batch_tokens: int
    attention: str
    prompt: str
    authors: AuthorsAdvice

    @property
    def sentence(self) -> SentenceModel | None:
        """The model's own sentence embedding if it is asked for, else None."""
        return self.authors.used


@dataclass(frozen=True, slots=True)
class AuthorsAdvice:
    """How the model is meant to be used at the sentence level.

    Attributes:
        description: Its own sentence embedding in plain words; `UNSUPPORTED`, or empty if the model does not say.
        prompts: Its prompts by name.
        used: That embedding, if it is asked for.
    """

    description: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)
    used: SentenceModel | None = None


def check_settings(config: ExtractConfig, info: ModelInfo) -> None:
    """Check the settings that need no tokenizer, which may take seconds to load.

    Raises:
        ConfigError: A layer is out of range, `max_length` is above the model's limit, or a device is not available.
    """
    _layers(config, info)
    _max_length(config, info, None)
    planned_kind(config.device, elsewhere=config.runner is Runner.RAY)


def resolve(config: ExtractConfig, checkpoint: Checkpoint, tokenizer: Tokenizer, authors: AuthorsAdvice) -> Resolved:
    """Fill in the defaults that depend on the model and the device, and check the settings against them.

    Raises:
        ConfigError: A layer is out of range, `max_length` is above the model's limit or leaves no room for text,
            `stride` leaves no step, the tokenizer lacks a token that the pooling needs, or a device is not available.
    """
    info = checkpoint.info()
    elsewhere = config.runner is Runner.RAY
    device_kind = planned_kind(config.device, elsewhere=elsewhere)
    layers = _layers(config, info)
    asked = None if elsewhere else config.device
    compute_dtype = resolve_compute_dtype(config.compute_dtype, device_kind, asked, is_bfloat16=checkpoint.is_bfloat16)
    return Resolved(
        model=info,
        config_sha256=checkpoint.config_sha256,
        layers=layers,
        columns={level: _columns(level, config, layers, info, tokenizer, authors.used) for level in config.levels},
        limits=_limits(config, info, tokenizer, authors.used),
        compute_dtype="float32" if _is_static(info) else compute_dtype,
        device_kind=device_kind,
        max_batch_tokens=config.max_batch_tokens or default_max_batch_tokens(device_kind, info.hidden_size),
        attention=f"lookup of {tokenizer.looks_up}" if tokenizer.looks_up else "",
        prompt=tokenizer.prompt,
        authors=authors,
    )


def _is_static(info: ModelInfo) -> bool:
    return info.family == STATIC.model_type


def _layers(config: ExtractConfig, info: ModelInfo) -> tuple[int, ...]:
    if _is_static(info):
        if config.layers not in ("last4", "all", "0", "-1"):
            raise ConfigError(
                f"`layers` {config.layers!r}: {config.model} holds static vectors, which are layer 0 only"
            )
        return (0,)
    if config.has_one_vector:
        # No column is made of the default layers, which a small model does not have.
        return (info.n_layers,)
    return parse_layers(config.layers, info.n_layers, model=config.model)


def _columns(
    level: Level,
    config: ExtractConfig,
    layers: tuple[int, ...],
    info: ModelInfo,
    tokenizer: Tokenizer,
    sentence: SentenceModel | None,
) -> tuple[FeatureColumn, ...]:
    if level is Level.SENTENCE and sentence is not None:
        return (FeatureColumn(EMBEDDING, (info.n_layers,), str(Combine.NONE), sentence.dim(info.hidden_size)),)
    if level is Level.SENTENCE and config.pooling is Pooling.POOLER:
        return (FeatureColumn("pooler", (info.n_layers,), str(Combine.NONE), info.hidden_size),)
    if level is Level.SENTENCE and config.pooling is Pooling.CLS:
        specials = [*tokenizer.single.prefix.ids, *tokenizer.single.suffix.ids]
        if tokenizer.cls_id is None or tokenizer.cls_id not in specials:
            raise ConfigError(f"`pooling='cls'`: {config.model} has no classification token; use mean or max")
    return feature_columns(layers, config.combine, hidden_size=info.hidden_size, n_layers=info.n_layers)


def _limits(
    config: ExtractConfig, info: ModelInfo, tokenizer: Tokenizer, sentence: SentenceModel | None
) -> WindowLimits:
    max_length = _max_length(config, info, sentence)
    pairs = config.text_pairs or config.text_pair_column is not None
    n_prompt = tokenizer.count_prompt()
    capacity = max_length - tokenizer.template(pair=pairs).n_specials - n_prompt
    # A pair is split into windows over its second text, which gets at least half of the room.
    least = 2 if pairs else 1
    if capacity < least:
        raise ConfigError(
            f"`max_length={max_length}` leaves {capacity} tokens beside the special ones"
            + (f" and the {n_prompt} of the prompt" if n_prompt else "")
            + f"; at least {least} are needed"
        )
    usual = 0 if _is_static(info) else min(max_length // 4, capacity - 1)
    stride = usual if config.stride is None else config.stride
    if stride >= capacity:
        raise ConfigError(f"`stride={stride}` leaves no step: a window holds {capacity} tokens of text; pass less")
    return WindowLimits(max_length=max_length, stride=stride, on_overlong=config.on_overlong)


def _max_length(config: ExtractConfig, info: ModelInfo, sentence: SentenceModel | None) -> int:
    usual = family_of(info.family).usual_length(info.max_length)
    tuned_on = sentence.max_length if sentence else None
    max_length = config.max_length or min(usual, tuned_on or usual)
    if max_length > info.max_length:
        raise ConfigError(f"`max_length={max_length}` is more than {config.model} takes, which is {info.max_length}")
    return max_length
