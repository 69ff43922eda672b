"""The settings of an extraction: one frozen object, made from flags, JSON or Python."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

from bertfeat.choices import (
    BadRows,
    Choice,
    ChunkContext,
    Combine,
    ComputeDtype,
    CorpusFormat,
    Level,
    OnOverlong,
    Pooling,
    Runner,
    SpanPair,
    SpanPooling,
    StoreDtype,
    UnknownWords,
    VectorEncoding,
    WordPooling,
)
from bertfeat.errors import BertfeatWarning, ConfigError, did_you_mean

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SHARE = re.compile(r"([1-9]\d*)/([1-9]\d*)", re.ASCII)
_POSITION = re.compile(r"-?\d{1,9}", re.ASCII)
_RAY = re.compile(r"auto|local|(?:ray://)?[^/]+:(\d{1,5})", re.ASCII)
_LAYERS = re.compile(r"all|last4|(-?\d{1,9})(?:\.\.(-?\d{1,9}))?", re.ASCII)

#: The forms of `chunk`.
CHUNK = re.compile(
    r"paragraphs|sentences(?::(?P<language>[a-z]{2,3}))?|tokens:(?P<size>[1-9]\d{0,5})(?::(?P<overlap>\d{1,6}))?",
    re.ASCII,
)

# Settings that decide where and how fast a shard runs, but not its bytes: a resumed run may change them.
_RUN_ONLY = ("device", "workers", "shards", "runner", "ray_address", "cache", "cache_size")
# The plan has the text of the prompt instead.
_RESOLVED_LATER = ("prompt", "prompt_name")
_TEXT_COLUMNS = ("text_column", "text_pair_column", "id_column", "document_column", "label_column")
_LAST = "-1"
# Poolings for which it does not matter whether special tokens count; it may for those that packages add.
_OF_ONE_TOKEN = (Pooling.CLS, Pooling.POOLER, Pooling.LASTTOKEN, Pooling.MODEL)
_DELIMITERS = {"tab": "\t", "\\t": "\t"}


@dataclass(frozen=True, kw_only=True)
class ExtractConfig:
    """Every setting of `bertfeat extract`, checked on construction.

    Enums may be given as strings, and tuples as lists or comma-separated strings. `None` selects a default that
    depends on the model (`max_length`, `stride`) or on the device (`max_batch_tokens`, `workers`). `combine` defaults
    to `none,concat` for the layers `last4` and to `none` for others. An empty `prompt` stands for no prompt. With
    `no_header`, the columns of .csv and .tsv are `column_1`, `column_2`, ..., and a number names the same column.
    `delimiter` is one ASCII character, or `tab`. `limit` counts the rows of all inputs, bad rows included. `shards` is
    a share `I/N`: this process does every Nth shard, beginning with the Ith. `cache` is a folder on a local disk where
    vectors are kept for later runs, and `cache_size` its largest size, in bytes or as `10GB`. `rows` is an SQL
    condition on the columns of the token and word levels, or of sentences if only these are stored. `positions` are
    places among the rows of a document that `rows` keeps: 0 is the first, -1 or `last` the last.

    The span level has a row for each of `spans`, or for each part that `chunk` cuts a document into: docs/spans.md.
    `spans` is a table of `doc_id`, `char_start` and `char_end` (or `word_start` and `word_end` of given words), with
    `_2` beside each for two spans per row (`span_pair`); or `words:A,B`, whole words in upper or lower case; or a
    regular expression. `chunk` is `paragraphs`, `sentences`, `sentences:LANGUAGE`, `tokens:N` or `tokens:N:OVERLAP`.

    A setting may have no effect beside the others: `extract`, `append`, `Encoder` and `embed` then warn, by `of`.

    Raises:
        ConfigError: A value is not one of the choices, is out of range, or contradicts another value.

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

    levels: tuple[Level, ...] = (Level.TOKEN,)
    layers: str = "last4"
    combine: tuple[Combine, ...] = ()
    rows: str | None = None
    positions: tuple[int, ...] = ()
    word_pooling: WordPooling = WordPooling.FIRST
    unknown_words: UnknownWords = UnknownWords.NULL
    spans: str | None = None
    span_pooling: SpanPooling = SpanPooling.MEAN
    span_pair: SpanPair = SpanPair.NONE
    chunk: str | None = None
    chunk_context: ChunkContext = ChunkContext.DOCUMENT
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
    shards: str | None = None
    runner: Runner = Runner.LOCAL
    ray_address: str | None = None
    cache: str | Path | None = None
    cache_size: int = 10_000_000_000

    def __post_init__(self) -> None:
        for name, kind in _ENUMS.items():
            self._set(name, _enum(name, kind, getattr(self, name)))
        self._set("levels", _ordered(Level, "levels", self.levels))
        self._set("keep_columns", _names("keep_columns", self.keep_columns))
        self._set("layers", _layers_text(self.layers))
        self._set("positions", _positions(self.positions))
        self._set("cache_size", parse_size(self.cache_size, "cache_size"))
        self._check_types()
        self._set("combine", _ordered(Combine, "combine", self.combine) if self.combine != () else self._usual_combine)
        self._set("delimiter", _delimiter(self.delimiter))
        if self.no_header:
            self._name_columns_by_number()
        self._check_together()
        if isinstance(self.cache, Path):
            self._set("cache", str(self.cache))

    def __repr__(self) -> str:
        usual = type(self)(layers=self.layers)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown = [f"{k}={v!r}" for k, v in given.items() if v != getattr(usual, k) or (k == "layers" and v != "last4")]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_types(self) -> None:
        for name, kind in _HINTS.items():
            what, value = _TYPE_NAMES.get(kind), getattr(self, name)
            if what and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
                raise ConfigError(f"`{name}` {value!r:.60} is not {what}")
            if name in _MINIMA and value is not None and value < _MINIMA[name]:
                raise ConfigError(f"`{name}={value}` is below {_MINIMA[name]}")

    def _name_columns_by_number(self) -> None:
        """Replace the numbers of columns, which no header names, by names."""
        for name in _TEXT_COLUMNS:
            if value := getattr(self, name):
                self._set(name, _numbered(value))
        self._set("keep_columns", tuple(map(_numbered, self.keep_columns)))

    def _check_together(self) -> None:
        """Refuse settings that contradict each other or are wrong, and columns that would be lost."""
        has_pairs, in_context = self.text_pair_column or self.text_pairs, self.document_context
        counts_specials = self.include_special_tokens
        no_pairs = "takes no second text; drop `text_pair_column` or `text_pairs`"
        shared = "cannot be used with `document_context`, where sentences share"
        own = "`pooling='model'` counts special tokens as the model does; drop `include_special_tokens`"
        two_pairs = "`text_pair_column` and `text_pairs` both name a second text; pass one of them"
        two_prompts = "`prompt` and `prompt_name` both give a prompt; pass one of them"
        by_token = self.pooling in _OF_ONE_TOKEN and Level.SENTENCE in self.levels
        has_spans, alone = self.spans is not None or self.chunk is not None, self.has_chunks_alone
        has_prompt = self.prompt or self.prompt_name is not None
        address = _RAY.fullmatch("auto" if self.ray_address is None else self.ray_address)
        for is_wrong, said in (
            (self.text_pair_column and self.text_pairs, two_pairs),
            (has_pairs and self.is_split_into_words, f"`is_split_into_words` {no_pairs}"),
            (has_pairs and in_context, f"`document_context` {no_pairs}"),
            (self.pooling is Pooling.MODEL and counts_specials, own),
            (self.prompt is not None and self.prompt_name is not None, two_prompts),
            (in_context and counts_specials, f"`include_special_tokens` {shared} the special tokens; drop one of them"),
            (in_context and by_token, f"`pooling='{self.pooling}'` {shared} the special tokens; use mean or max"),
            (in_context and has_prompt, f"`prompt` {shared} a window; drop one of them"),
            (
                in_context and self.cache is not None,
                "`cache` cannot be used with `document_context`, where vectors depend on neighbours; drop one of them",
            ),
            (
                self.runner is Runner.RAY and "cuda:" in self.device,
                f"`device='{self.device}'` numbers devices, which Ray assigns; pass `device='cuda'`",
            ),
            (
                not (address and 0 < int(address[1] or 1) < 65536),
                f"`ray_address` {self.ray_address!r} must be one of auto, local, HOST:PORT, ray://HOST:PORT",
            ),
            (
                self.shards is not None and not self.share,
                f"`shards` {self.shards!r} must be I/N, share I of N, from 1/N to N/N",
            ),
            (
                self.shards is not None and self.runner is Runner.RAY,
                "`shards` and `runner='ray'` both spread a run over machines; drop one of them",
            ),
            (self.cache == "", "`cache` '' is not the name of a folder"),
            (
                self.spans is not None and self.chunk is not None,
                "`spans` and `chunk` both give spans; pass one of them",
            ),
            (
                Level.SPAN in self.levels and not has_spans,
                "`levels='span'` needs its spans: pass `spans` with a file or a pattern, or `chunk`",
            ),
            (has_spans and has_pairs, f"the span level {no_pairs}"),
            (alone and in_context, "`chunk_context='alone'` and `document_context` exclude each other; drop one"),
            (self.joins_spans and self.spans is None, "`span_pair` is for the columns of a file of `spans`; pass both"),
        ):
            if is_wrong:
                raise ConfigError(said)
        if self.chunk is not None:
            _check_chunk(self.chunk)
        kept_at = Level.SPAN if Level.SPAN in self.levels else Level.SENTENCE
        stored_at = {"keep_columns": kept_at, "label_column": Level.WORD, "spans": Level.SPAN, "chunk": Level.SPAN}
        for name, level in stored_at.items():
            if getattr(self, name) and level not in self.levels:
                raise ConfigError(
                    f"`{name}` would not be stored without the {level} level; add that to `levels`, or leave this out"
                )

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
        """Return the settings of a call, given as an object or by name; warn of each that has no effect."""
        if config is not None and settings:
            raise ConfigError(
                f"setting {next(iter(settings))!r} beside config; put it into config, or pass all by name"
            )
        config = config or cls.from_dict(settings)
        for said in config.ignored().values():
            # The place of a warning is the call of the public function.
            warnings.warn(BertfeatWarning(said), stacklevel=3)
        return config.effective()

    @classmethod
    def recorded(cls, values: Mapping[str, Any], settings: Mapping[str, Any]) -> ExtractConfig:
        """Return the settings of a record, without those that have no effect, and others in their place."""
        return cls.from_dict({**cls.from_dict(values).effective().to_dict(), **settings})

    def ignored(self) -> dict[str, str]:
        """Return what to say of each setting that is not its default and has no effect beside the others."""
        leave_out, one_vector = "add that to `levels`, or leave this out", self.has_one_vector
        mean = "leave it out, or pass `pooling='mean'`"
        # With document context, the stride also says how many tokens of neighbours a sentence has at least.
        has_stride = self.on_overlong is OnOverlong.WINDOW or self.document_context
        no_words, no_sentences = Level.WORD not in self.levels, not self.text_levels
        no_spans = Level.SPAN not in self.levels or self.has_chunks_alone
        one_token = self.pooling in _OF_ONE_TOKEN
        rules = (
            ("positions", self.levels == (Level.SENTENCE,), f"without the token or word level; {leave_out}"),
            ("word_pooling", no_words, f"without the word level; {leave_out}"),
            ("unknown_words", no_words, f"without the word level; {leave_out}"),
            ("span_pooling", no_spans, "without spans in the context of a document; leave it out"),
            ("chunk_context", self.chunk is None, "without `chunk`; add it"),
            ("pooling", no_sentences, f"without the sentence level; {leave_out}"),
            ("include_special_tokens", no_sentences, f"without the sentence level; {leave_out}"),
            ("include_special_tokens", one_token, f"with a pooling that takes one token; {mean}"),
            ("layers", one_vector and self.layers != _LAST, f"with a pooling that reads the last layer; {mean}"),
            ("combine", one_vector, f"with a pooling that gives one vector; {mean}"),
            ("document_column", not self.document_context, "without `document_context`; pass both or neither"),
            ("stride", not has_stride, "where no text has two windows; leave it out, or pass `on_overlong='window'`"),
            ("cache_size", self.cache is None, "without `cache`; add it"),
            ("ray_address", self.runner is not Runner.RAY, "without `runner='ray'`; add it"),
        )
        found: dict[str, str] = {}
        for name, is_ignored, reason in rules:
            value = _plain(getattr(self, name))
            if is_ignored and value != _plain(self._usual(name)):
                shown = ",".join(map(str, value)) if isinstance(value, list) else value
                found.setdefault(name, f"`{name}={shown!r}` has no effect {reason}")
        return found

    def effective(self) -> ExtractConfig:
        """Return the settings with those that have no effect at their defaults, so that equal runs are equal."""
        changes = {name: self._usual(name) for name in self.ignored()}
        if self.has_one_vector:
            # It is of the last layer, which every model has.
            changes |= {"layers": _LAST, "combine": ()}
        return dataclasses.replace(self, **changes)

    def _usual(self, name: str) -> Any:
        return self._usual_combine if name == "combine" else _DEFAULTS[name]

    @property
    def _usual_combine(self) -> tuple[Combine, ...]:
        return (Combine.NONE, Combine.CONCAT) if self.layers == "last4" else (Combine.NONE,)

    @property
    def share(self) -> tuple[int, int] | None:
        """The share of the shards that this process does, and how many shares there are; None for all shards."""
        found = _SHARE.fullmatch(self.shards or "")
        numbers = (int(found[1]), int(found[2])) if found else (1, 0)
        return numbers if numbers[0] <= numbers[1] else None

    @property
    def has_one_vector(self) -> bool:
        """Whether the pooling gives each text one vector of the last layer, whatever the layers."""
        return self.text_levels == self.levels and self.pooling in (Pooling.MODEL, Pooling.POOLER)

    @property
    def joins_spans(self) -> bool:
        """Whether a row of the span level is of two spans."""
        return self.span_pair is not SpanPair.NONE

    @property
    def has_chunks_alone(self) -> bool:
        """Whether each chunk is encoded as a text of its own."""
        return Level.SPAN in self.levels and self.chunk is not None and self.chunk_context is ChunkContext.ALONE

    @property
    def text_levels(self) -> tuple[Level, ...]:
        """The levels of which a row is a whole text of the encoder, pooled by `pooling`: sentences, chunks alone."""
        alone = (Level.SPAN,) if self.has_chunks_alone else ()
        return tuple(level for level in self.levels if level in (*alone, Level.SENTENCE))

    @property
    def filtered_levels(self) -> tuple[Level, ...]:
        """The levels of which only some rows are stored; sentences are stored whole beside other levels."""
        if self.rows is None and not self.positions:
            return ()
        return tuple(level for level in self.levels if level is not Level.SENTENCE) or self.levels

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, from which `from_dict` builds an equal config."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def planned(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of a store, as plain JSON values."""
        return {name: value for name, value in self.to_dict().items() if name not in _RUN_ONLY + _RESOLVED_LATER}


_HINTS = get_type_hints(ExtractConfig)
_ENUMS = {name: kind for name, kind in _HINTS.items() if isinstance(kind, type) and issubclass(kind, Choice)}
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(ExtractConfig)}
_TYPE_NAMES = {str: "text", str | None: "text", bool: "True or False", str | Path | None: "the name of a folder"}
_TYPE_NAMES |= dict.fromkeys((int, int | None), "a whole number")
_MINIMA = {
    "limit": 1,
    "max_length": 1,
    "stride": 0,
    "max_batch_tokens": 1,
    "shard_bytes": 1,
    "workers": 1,
    "cache_size": 1_000_000,
}


def flag(name: str) -> str:
    """Return the command-line flag of a setting: `--level` for `levels`."""
    singular = {"levels": "level", "inputs": "input", "vector_columns": "vector_column"}
    return "--" + singular.get(name, name).replace("_", "-")


def parse_size(value: int | str, name: str = "") -> int:
    """Return a number of bytes; a text may have a unit, as in `1.5 GB`. `name` is the setting, for the message."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ConfigError(f"{name and f'`{name}` '}{value!r} is not a size; write for example 256MB")
    # Decimal, because the float 0.29 times a billion is not a whole number.
    return int(Decimal(found[1]) * _FACTORS[found[2].upper()])


def _enum(name: str, kind: type[Choice], value: object) -> Choice:
    try:
        return kind(str(value))
    except ValueError:
        hint = did_you_mean(value, kind.names())
        choices = f"must be one of {', '.join(kind.names())}" + (f"; {hint}" if hint else "")
        raise ConfigError(f"`{name}` {value!r} {choices}") from None


def _delimiter(value: str | None) -> str | None:
    delimiter = _DELIMITERS.get(str(value), value)
    if delimiter is not None and (len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0'):
        raise ConfigError(f"`delimiter` {value!r} must be one ASCII character, such as ; or |, or tab")
    return delimiter


def _check_chunk(value: str) -> None:
    found = CHUNK.fullmatch(value)
    if found is None:
        forms = "paragraphs, sentences, sentences:LANGUAGE, tokens:N or tokens:N:OVERLAP"
        raise ConfigError(f"`chunk` {value!r:.60} is not a way to cut; write {forms}")
    if found["size"] and int(found["overlap"] or 0) >= int(found["size"]):
        raise ConfigError(f"`chunk` {value!r}: the overlap leaves no step; make it less than {found['size']}")


def _numbered(name: str) -> str:
    return f"column_{name.lstrip('0') or 0}" if name.isascii() and name.isdecimal() else name


def names_in(value: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return names, from a list or a text with commas between them, each once."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _names(name: str, value: Any) -> tuple[str, ...]:
    value = value if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    for part in value:
        if not isinstance(part, str):
            raise ConfigError(f"`{name}` {part!r:.60} is not text")
    return names_in(value)


def _ordered(kind: type[Choice], name: str, value: Any) -> tuple[Choice, ...]:
    """Return the members named in `value` in the order of the enum, so that equal requests are equal."""
    chosen = {_enum(name, kind, part) for part in _names(name, value)}
    if not chosen:
        raise ConfigError(f"`{name}` is empty; choose from {', '.join(kind)}")
    return tuple(member for member in kind if member in chosen)


def _layers_text(value: str | int | Iterable[int]) -> str:
    """Return layers as text of a known form; whether the model has them is known with the model."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        value = ",".join(map(str, value))
    text = str(value).replace(" ", "")
    layer_pieces(text)
    return text


def _positions(value: Any) -> tuple[int, ...]:
    """Return the positions of rows in a document in order, each once; those from the end are negative."""
    text = ",".join(map(str, value)) if isinstance(value, Iterable) and not isinstance(value, str) else str(value)
    parts = ["-1" if part == "last" else part for part in names_in(text)]
    for part in parts if parts or value == () or value == [] else [text]:
        if not _POSITION.fullmatch(part):
            raise ConfigError(f"`positions` {part!r} is not a position; write numbers and last, such as 0,1,last")
    return tuple(sorted({int(part) for part in parts}))


def layer_pieces(spec: str, setting: str = "layers") -> list[re.Match[str]]:
    """Return the pieces of `layers`, or of another setting: `all`, `last4`, or the numbers of a layer or of a range."""
    found = []
    for piece in spec.replace(" ", "").split(","):
        match = _LAYERS.fullmatch(piece)
        if match is None:
            forms = "'all', 'last4', numbers and ranges such as '0,4,-1' or '-4..-1'"
            raise ConfigError(f"`{setting}` {piece!r} is not a layer; write {forms}")
        found.append(match)
    return found


def _plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
