"""Settings that depend on the model, its tokenizer or the device: their defaults, and their checks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from bertfeat.choices import Combine, Level, Pooling, Runner
from bertfeat.config import ExtractConfig
from bertfeat.devices import default_max_batch_tokens, planned_kind, resolve_compute_dtype
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.families import STATIC, family_of
from bertfeat.encoder.layers import feature_columns, parse_layers
from bertfeat.encoder.sentencemodel import UNSUPPORTED, Prompts, SentenceModel
from bertfeat.errors import CheckpointError, ConfigError
from bertfeat.extraction.staticmodels import check_static, open_tokenizer
from bertfeat.levels import EMBEDDING
from bertfeat.records import FeatureColumn, ModelInfo
from bertfeat.store.provenance import FeatureSpec
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


def resolve(
    config: ExtractConfig, checkpoint: Checkpoint, *, given_words: bool, tokenizer: Tokenizer | None = None
) -> tuple[Tokenizer, Resolved]:
    """Load the tokenizer, fill in the defaults that depend on the model and the device, and check the settings.

    Args:
        config: The settings.
        checkpoint: The model.
        given_words: Whether documents are lists of words.
        tokenizer: The model's tokenizer for such documents, if it is loaded.

    Returns:
        The tokenizer with its prompt, and the settings.

    Raises:
        CheckpointError: The tokenizer, or what the settings need of the model, cannot be used.
        ConfigError: A layer is out of range, `max_length` is above the model's limit or leaves no room for text,
            `stride` leaves no step, the tokenizer lacks a token that the pooling needs, or a device is not available.
    """
    check_static(config, checkpoint)
    info, prompt, authors = checkpoint.info(), find_prompt(checkpoint, config), authors_advice(checkpoint, config)
    layers, max_length = _layers(config, info), _max_length(config, info, authors.used)
    elsewhere = config.runner is Runner.RAY
    device_kind = planned_kind(config.device, elsewhere=elsewhere)
    # After the checks that do not need it, because it may take seconds to load.
    tokenizer = tokenizer or open_tokenizer(checkpoint, given_words=given_words)
    tokenizer = tokenizer.with_prompt(prompt)
    asked = None if elsewhere else config.device
    compute_dtype = resolve_compute_dtype(config.compute_dtype, device_kind, asked, is_bfloat16=checkpoint.is_bfloat16)
    return tokenizer, Resolved(
        model=info,
        config_sha256=checkpoint.config_sha256,
        layers=layers,
        columns={level: _columns(level, config, layers, info, tokenizer, authors.used) for level in config.levels},
        limits=_limits(config, info, tokenizer, max_length),
        compute_dtype="float32" if _is_static(info) else compute_dtype,
        device_kind=device_kind,
        max_batch_tokens=config.max_batch_tokens or default_max_batch_tokens(device_kind, info.hidden_size),
        attention=f"lookup of {tokenizer.looks_up}" if tokenizer.looks_up else "",
        prompt=prompt,
        authors=authors,
    )


def check_model(spec: FeatureSpec, checkpoint: Checkpoint, *, mine: str) -> None:
    """Refuse a model that did not make a feature; `mine` is what has the feature, for the message.

    Raises:
        UserError: The weights, the tokenizer, config.json or the sentence embedding differ.
    """
    sentence = checkpoint.sentence_model() if spec.sentence_sha256 else None
    spec.require_model(checkpoint.info(), checkpoint.config_sha256, sentence.sha256 if sentence else None, mine=mine)


def find_prompt(checkpoint: Checkpoint, config: ExtractConfig) -> str:
    """Return the text that is put before each document; the model's default prompt counts with pooling `model` only.

    Raises:
        UserError: The model has no prompt of the name asked for, or its list of prompts cannot be used.
    """
    if config.prompt is not None:
        return config.prompt
    name = config.prompt_name
    if name is None and config.pooling is not Pooling.MODEL:
        return ""
    prompts = checkpoint.prompts()
    name = prompts.default_name if name is None else name
    return "" if name is None else prompts.text_of(name)


def authors_advice(checkpoint: Checkpoint, config: ExtractConfig) -> AuthorsAdvice:
    """Return how a model is meant to be used at the sentence level; nothing if no such rows are asked for.

    Raises:
        CheckpointError: Pooling `model` is asked for, and the model has no sentence embedding of its own, or one that
            is not supported.
    """
    if Level.SENTENCE not in config.levels:
        return AuthorsAdvice()
    if config.pooling is Pooling.MODEL:
        sentence = checkpoint.sentence_model()
        if sentence is None:
            online = "" if checkpoint.revision is None else ", or connect to the hub once if its page has that file"
            raise CheckpointError(
                f"`pooling='model'`: {checkpoint.folder} has no modules.json, so the model has no sentence embedding "
                f"of its own; pass `pooling='mean'`{online}"
            )
        return AuthorsAdvice(sentence.describe(), checkpoint.prompts().texts, sentence)
    description, prompts = UNSUPPORTED, Prompts()
    with contextlib.suppress(CheckpointError):
        sentence = checkpoint.sentence_model()
        description = sentence.describe() if sentence else ""
    with contextlib.suppress(CheckpointError):
        prompts = checkpoint.prompts()
    return AuthorsAdvice(description, prompts.texts)


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


def _limits(config: ExtractConfig, info: ModelInfo, tokenizer: Tokenizer, max_length: int) -> WindowLimits:
    pairs = config.text_pairs or config.text_pair_column is not None
    n_prompt = tokenizer.count_prompt()
    capacity = max_length - (tokenizer.pair if pairs else tokenizer.single).n_specials - n_prompt
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
