"""Settings that depend on the model, its tokenizer or the device: their defaults, and their checks."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from bertfeat.choices import (
    Combine,
    ComputeDtype,
    Level,
    OnOverlong,
    Pooling,
    Runner,
    SpanPair,
    SpanPooling,
    UnknownWords,
)
from bertfeat.config import ExtractConfig
from bertfeat.devices import default_max_batch_tokens, planned_kind, resolve_compute_dtype
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.families import STATIC, family_of
from bertfeat.encoder.layers import feature_columns, parse_layers
from bertfeat.encoder.sentence_model import UNSUPPORTED, Prompts, SentenceModel
from bertfeat.errors import CheckpointError, ConfigError
from bertfeat.levels import EMBEDDING
from bertfeat.records import FeatureColumn, ModelInfo
from bertfeat.store.provenance import FeatureSpec
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.window_ranges import WindowLimits

# Settings that have no effect with static vectors, with the values that change nothing.
_WITHOUT_MEANING = {
    "document_context": (False,),
    "include_special_tokens": (False,),
    "prompt": (None, ""),
    "prompt_name": (None,),
    "stride": (None, 0),
    "compute_dtype": (ComputeDtype.AUTO, ComputeDtype.FLOAT32),
}
_WITHOUT_TOKENS = (Pooling.CLS, Pooling.POOLER, Pooling.LASTTOKEN)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings that depend on the model or the device, with their defaults filled in.

    `sentence` is the model's own sentence embedding if it is asked for; `described` is what its authors do, in words.
    """

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
    sentence: SentenceModel | None
    described: str
    prompts: Mapping[str, str]


def resolve(
    config: ExtractConfig, checkpoint: Checkpoint, *, given_words: bool, tokenizer: Tokenizer | None = None
) -> tuple[Tokenizer, Resolved]:
    """Load the tokenizer, fill in the defaults that depend on the model and the device, and check the settings.

    `tokenizer` is one that is loaded already; the one that is returned puts the prompt before documents.
    """
    _check_static(config, checkpoint)
    if given_words and config.has_chunks_alone:
        raise ConfigError("`chunk_context='alone'` encodes texts, and the corpus gives words; leave it out")
    info, prompt, sentence = checkpoint.info(), find_prompt(checkpoint, config), own_embedding(checkpoint, config)
    described, prompts = _authors_advice(checkpoint, config)
    layers, max_length = _layers(config, info), _max_length(config, info, sentence)
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
        columns={level: _columns(level, config, layers, info, tokenizer, sentence) for level in config.levels},
        limits=_limits(config, info, tokenizer, max_length),
        compute_dtype="float32" if _is_static(info) else compute_dtype,
        device_kind=device_kind,
        max_batch_tokens=config.max_batch_tokens or default_max_batch_tokens(device_kind, info.hidden_size),
        attention=f"lookup of {tokenizer.looks_up}" if tokenizer.looks_up else "",
        prompt=prompt,
        sentence=sentence,
        described=described,
        prompts=prompts,
    )


def check_model(spec: FeatureSpec, checkpoint: Checkpoint, *, mine: str) -> None:
    """Refuse a model that did not make a feature; `mine` is what has the feature, for the message."""
    sentence = checkpoint.sentence_model() if spec.sentence_sha256 else None
    spec.require_model(checkpoint.info(), checkpoint.config_sha256, sentence.sha256 if sentence else None, mine=mine)


def find_prompt(checkpoint: Checkpoint, config: ExtractConfig) -> str:
    """Return the text that is put before each document; the model's default prompt counts with pooling `model` only."""
    if config.prompt is not None:
        return config.prompt
    name = config.prompt_name
    if name is None and config.pooling is not Pooling.MODEL:
        return ""
    prompts = checkpoint.prompts()
    name = prompts.default_name if name is None else name
    return "" if name is None else prompts.text_of(name)


def own_embedding(checkpoint: Checkpoint, config: ExtractConfig) -> SentenceModel | None:
    """Return the model's own sentence embedding; None if it is not asked for."""
    if config.pooling is not Pooling.MODEL or not config.text_levels:
        return None
    if (sentence := checkpoint.sentence_model()) is not None:
        return sentence
    online = "" if checkpoint.revision is None else ", or connect to the hub once if its page has that file"
    raise CheckpointError(
        f"`pooling='model'`: {checkpoint.folder} has no modules.json, so the model has no sentence embedding "
        f"of its own; pass `pooling='mean'`{online}"
    )


def _authors_advice(checkpoint: Checkpoint, config: ExtractConfig) -> tuple[str, Mapping[str, str]]:
    """Return the model's own sentence embedding in plain words, empty if it does not say, and its prompts by name."""
    if not config.text_levels:
        return "", {}
    described, prompts = UNSUPPORTED, Prompts()
    with contextlib.suppress(CheckpointError):
        sentence = checkpoint.sentence_model()
        described = sentence.describe() if sentence else ""
    with contextlib.suppress(CheckpointError):
        prompts = checkpoint.prompts()
    return described, prompts.texts


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
    of_texts = level in config.text_levels
    if of_texts and sentence is not None:
        return (FeatureColumn(EMBEDDING, (info.n_layers,), str(Combine.NONE), sentence.dim(info.hidden_size)),)
    if of_texts and config.pooling is Pooling.POOLER:
        return (FeatureColumn("pooler", (info.n_layers,), str(Combine.NONE), info.hidden_size),)
    if of_texts and config.pooling is Pooling.CLS:
        specials = [*tokenizer.single.prefix.ids, *tokenizer.single.suffix.ids]
        if tokenizer.cls_id is None or tokenizer.cls_id not in specials:
            raise ConfigError(f"`pooling='cls'`: {config.model} has no classification token; use mean or max")
    columns = feature_columns(layers, config.combine, hidden_size=info.hidden_size, n_layers=info.n_layers)
    if level is not Level.SPAN or of_texts:
        return columns
    times = (1 + (config.span_pooling is SpanPooling.ENDS)) * (1 + (config.span_pair is SpanPair.CONCAT))
    return tuple(dataclasses.replace(column, dim=times * column.dim) for column in columns)


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


def _check_static(config: ExtractConfig, checkpoint: Checkpoint) -> None:
    """Refuse settings that have no effect with a model: most of them for static vectors, one for all others."""
    static = checkpoint.static
    has_words = static is not None and static.words is not None
    if config.unknown_words is not UnknownWords.NULL and not has_words:
        raise ConfigError("`unknown_words` has an effect with files of word vectors only; drop it")
    if static is None:
        return
    what = f"with the static vectors of {config.model}"
    for name, usual in _WITHOUT_MEANING.items():
        if (value := getattr(config, name)) not in usual:
            raise ConfigError(f"`{name}={value!r}` has no effect {what}; drop it")
    # A model's own embedding may read a text up to a length.
    sentence = checkpoint.sentence_model() if config.pooling is Pooling.MODEL else None
    length = sentence.max_length if sentence else None
    if config.max_length not in (None, checkpoint.max_length, length):
        raise ConfigError(f"`max_length={config.max_length}` has no effect {what}, which read each text whole; drop it")
    if config.pooling in _WITHOUT_TOKENS and config.text_levels:
        raise ConfigError(f"`pooling='{config.pooling}'` cannot be used {what}; use mean or max")
    if config.on_overlong is not OnOverlong.WINDOW and length is None:
        raise ConfigError(f"`on_overlong='{config.on_overlong}'` has no effect {what}, which have no limit; drop it")
    if has_words and Level.TOKEN in config.levels:
        raise ConfigError(f"`levels='token'`: a token is a word {what}; pass `levels='word'`")
    if has_words and config.pooling is Pooling.MODEL:
        raise ConfigError(f"`pooling='model'` cannot be used {what}; pass `pooling='mean'`")


def open_tokenizer(checkpoint: Checkpoint, *, given_words: bool) -> Tokenizer:
    """Return the tokenizer of a model."""
    static, n_ids = checkpoint.static, checkpoint.n_ids
    if static is None:
        return Tokenizer.load(checkpoint.folder, given_words=given_words, n_ids=n_ids)
    is_uncased = static.words.is_uncased if static.words else None
    return Tokenizer.load_static(static.file.parent, given_words=given_words, n_ids=n_ids, is_uncased=is_uncased)
