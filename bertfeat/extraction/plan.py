"""The plan: what a store is made from, and the cut of the corpus into shards, before any weight is loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from bertfeat._version import __version__
from bertfeat.choices import BadRows, CorpusFormat, Level, OnOverlong, SpanPair, StoreDtype, UnknownWords
from bertfeat.config import ExtractConfig
from bertfeat.corpus import Corpus, CorpusSchema, ScannedRow, cut_shards
from bertfeat.corpus.corpus import recorded_path
from bertfeat.corpus.formats import own_columns
from bertfeat.corpus.span_files import SpanFile, is_span_file, open_spans
from bertfeat.durable.differences import differing
from bertfeat.durable.records import hash_of_json
from bertfeat.encoder.sentence_model import SentenceModel
from bertfeat.errors import ConfigError
from bertfeat.extraction.resolution import Resolved
from bertfeat.levels import LEVELS, PAIR_COLUMNS, SECOND_SPAN
from bertfeat.records import (
    FORMAT_VERSION,
    Document,
    FeatureColumn,
    InputFile,
    LevelSchema,
    ModelInfo,
    Plan,
    SpanRows,
)
from bertfeat.storage import AnyPath
from bertfeat.store.conditions import table_rows_where
from bertfeat.store.folder import folder_at
from bertfeat.store.manifest import COMPACTED, newest_readable
from bertfeat.store.plan_file import (
    MODEL_NAMES,
    SPANS_DIGEST,
    PlanDamaged,
    hash_of_plan,
    names_only,
    plan_hashes,
    read_plan,
)
from bertfeat.text.spans import find_spans, needs_tokens
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.tokens import Tokens
from bertfeat.text.window_ranges import check_lengths

# The memory for each token of a shard apart from its vectors: ids, offsets, windows, strings.
_WORKING_BYTES_PER_TOKEN = 256
# The same for each span: bounds, positions, the text and further columns.
_WORKING_BYTES_PER_SPAN = 512
_WORDS_PER_TOKEN = 0.8
_SAMPLE_ROWS = 512
_SAMPLE_CHARS = 2_000
# Fields that another run of a finished store need not repeat.
VERSION_NAMES = tuple(f"versions.{name}" for name in ("bertfeat", "torch", "transformers"))
FINISHED_NAMES = ("shard_bytes", *VERSION_NAMES)
#: Fields that decide which rows are stored, if they are set.
ROW_FILTERS = ("rows", "positions")
# Fields of the span level, which other plans lack.
_OF_SPANS = ("spans", "span_pooling", "span_pair", "chunk", "chunk_context")
# Fields that decide which documents are read, which rows are stored and how, but not the vectors of a row.
_OF_NO_VECTOR = (
    *(*MODEL_NAMES, "format_version", "max_batch_tokens", "shard_bytes", "vector_encoding", "bad_rows", "limit"),
    *("format", "text_column", "text_pair_column", "text_pairs", "id_column", "keep_columns", "label_column"),
    *("document_column", "no_header", "delimiter", "own_columns", *ROW_FILTERS, "spans", SPANS_DIGEST),
)
# The field of a plan with the columns that a format gives without a setting.
OWN_COLUMNS = "own_columns"
# Fields of a plan that every part and the manifest repeat, with the value of those that an import does not decide.
_DESCRIBING: dict[str, Any] = {
    "format_version": FORMAT_VERSION,
    "model": "",
    "revision": None,
    "layers": [],
    "combine": ["none"],
    "word_pooling": "",
    "pooling": "",
    "include_special_tokens": False,
    "store_dtype": "",
    "vector_encoding": "",
    "compute_dtype": "",
    "device_kind": "",
    "max_length": 0,
    "stride": 0,
    "on_overlong": "",
    "document_context": False,
    "is_split_into_words": False,
}


def plan_fields(config: ExtractConfig, resolved: Resolved, files: Sequence[InputFile]) -> dict[str, Any]:
    """Return everything that decides the bytes of the parts, as flat JSON values, but for the inputs.

    The hash of a plan covers the bytes of the inputs, but not their paths, workers, device number and runner.
    """
    fields = config.planned()
    left_out = () if Level.SPAN in config.levels else _OF_SPANS
    fields = {
        name: value
        for name, value in fields.items()
        if name not in left_out and (name not in (*ROW_FILTERS, *_OF_SPANS) or value not in (None, []))
    }
    if (spans := span_file(config)) is not None:
        fields[SPANS_DIGEST] = spans.digest
    fields |= {
        "format_version": FORMAT_VERSION,
        "layers": list(resolved.layers),
        "max_length": resolved.limits.max_length,
        "stride": resolved.limits.stride,
        "compute_dtype": resolved.compute_dtype,
        "device_kind": resolved.device_kind,
        "max_batch_tokens": resolved.max_batch_tokens,
        "model": resolved.model.name,
        "revision": resolved.model.revision,
        **fields_of_process(resolved.model, resolved.config_sha256, resolved.sentence),
    }
    if (own := own_columns(files)) and set(config.levels) != {Level.TOKEN}:
        fields[OWN_COLUMNS] = own
    if resolved.prompt or resolved.sentence is not None:
        fields["prompt"] = resolved.prompt
    used = (config.pooling, config.word_pooling, *{CorpusFormat(file.format) for file in files})
    if packages := {choice.added_by for choice in used if choice.added_by}:
        fields["extensions"] = sorted(packages)
    return fields


def span_file(config: ExtractConfig) -> SpanFile | None:
    """Return the file of spans of some settings; None if they name none."""
    if config.spans is None or Level.SPAN not in config.levels or not is_span_file(config.spans):
        return None
    found = open_spans(config.spans)
    if found.pairs and not config.joins_spans:
        raise ConfigError(f"`spans` {config.spans!r} has two spans in each row; join them with `span_pair`")
    if config.joins_spans and not found.pairs:
        raise ConfigError(f"`span_pair` needs char_start_2 and char_end_2, which {config.spans!r} does not have")
    return found


def fields_of_process(model: ModelInfo, config_sha256: str, sentence: SentenceModel | None) -> dict[str, str]:
    """Return what a plan keeps of the files of a model and of the libraries, which each of its processes must have."""
    return {
        "model.weights_sha256": model.weights_sha256,
        "model.tokenizer_sha256": model.tokenizer_sha256,
        "model.config_sha256": config_sha256,
        **({} if sentence is None else {"model.sentence_sha256": sentence.sha256}),
        **dict(zip(VERSION_NAMES, versions().values(), strict=True)),
    }


def vector_digest(config: ExtractConfig, resolved: Resolved) -> str:
    """Return a digest (hex) of all that decides the vectors of a document: settings, model and versions."""
    fields = plan_fields(config, resolved, ())
    decisive = {name: value for name, value in fields.items() if name not in _OF_NO_VECTOR}
    return hash_of_json(decisive)


def versions() -> dict[str, str]:
    """Return the versions of the libraries, which a store records."""
    return {"bertfeat": __version__, "torch": version("torch"), "transformers": version("transformers")}


def make_plan(
    fields: Mapping[str, Any], resolved: Resolved, corpus: Corpus, tokenizer: Tokenizer, first_shard: int = 0
) -> Plan:
    """Read the corpus once, check every row, and cut it into shards: a pure function of the inputs and the settings.

    The size of a shard follows from the bytes that its rows will take on disk; tokens are estimated from bytes by the
    ratio in the first rows of the corpus.
    """
    config = corpus.config
    cost = _row_cost(resolved, config, *_per_byte(corpus, tokenizer))
    spans = span_file(config)
    rows = corpus.scan() if spans is None else spans.counted(corpus.scan())
    shards = cut_shards(rows, cost, config.shard_bytes, keep_groups=config.document_context, first=first_shard)
    columns = corpus.schema()
    if Level.SPAN in config.levels:
        own = () if spans is None else spans.columns
        kept = () if Level.SENTENCE in config.levels else columns.kept
        columns = dataclasses.replace(columns, spans=(*own, *kept), has_span_pairs=config.joins_spans)
    schemas = {level: level_schema(level, columns, resolved.columns[level]) for level in config.levels}
    if spans is not None:
        parts = ([row for row in corpus.read(shard) if isinstance(row, Document)] for shard in shards)
        is_all = config.limit is None and config.bad_rows is BadRows.ERROR and corpus.earlier is None
        spans.check(parts, is_all=is_all)
    if config.rows is not None:
        for level in config.filtered_levels:
            # Without rows, this finds what is wrong before anything is written.
            table_rows_where(config.rows, level, schemas, defaultdict(list), np.zeros(0, np.int64))
    if config.on_overlong is OnOverlong.ERROR:
        # Check before anything is written, although the corpus is then tokenized twice.
        for shard in shards:
            check_lengths([row for row in corpus.read(shard) if isinstance(row, Document)], tokenizer, resolved.limits)
    inputs = recorded(corpus.files)
    return Plan(
        plan_hash=hash_of_plan(fields, inputs),
        fields=fields,
        inputs=inputs,
        model=resolved.model,
        schemas=schemas,
        shards=shards,
        metadata=describe(
            fields,
            resolved.model,
            config_sha256=resolved.config_sha256,
            attention=resolved.attention,
            versions=versions(),
            **_advice(resolved, fields),
        ),
        kept_schema=corpus.schema().kept_arrow,
    )


def stored_plan(output: AnyPath, fields: Mapping[str, Any], inputs: Sequence[InputFile]) -> Plan | None:
    """Return the plan of these fields and inputs that lies in a store; None if it must be made."""
    folder = folder_at(output)
    newest = newest_readable(folder)
    with contextlib.suppress(PlanDamaged):
        for plan_hash in [state.plan_hash for state in newest.history] if newest else plan_hashes(folder):
            stored = read_plan(folder, plan_hash)
            if stored is None:
                continue
            # A finished store has its shards, whatever size and versions another run has.
            done = {name: stored.fields[name] for name in FINISHED_NAMES if newest and name in stored.fields}
            if hash_of_plan({**fields, **done}, inputs) == stored.plan_hash:
                return stored
    return None


def plan_differences(
    stored: Mapping[str, Any], now: Mapping[str, Any], left_out: Sequence[str] = ()
) -> dict[str, tuple[object, object]]:
    """Return the fields in which two plans differ, with both values; a model's name does not count, its digests do."""
    left_out = (*left_out, *names_only(stored), "base", COMPACTED)
    return differing(*({name: fields[name] for name in fields.keys() - left_out} for fields in (stored, now)))


def recorded(files: Sequence[InputFile]) -> tuple[InputFile, ...]:
    """Return inputs under the names that a plan records; standard input and a data frame have names of their own."""
    # JSON holds no bytes that are not UTF-8.
    paths = [recorded_path(file.path).encode(errors="backslashreplace").decode() for file in files]
    return tuple(dataclasses.replace(file, path=path) for file, path in zip(files, paths, strict=True))


def _per_byte(corpus: Corpus, tokenizer: Tokenizer) -> tuple[float, float]:
    """Return the tokens and the spans of a rule per byte of text, measured on the first rows of the corpus."""
    rows = itertools.islice(corpus.scan(), _SAMPLE_ROWS)
    head = cut_shards(rows, lambda row: row.n_bytes, 1 << 20, keep_groups=False)
    documents = [row for shard in head[:1] for row in corpus.read(shard) if isinstance(row, Document)]
    n_bytes = sum(len(d.text.encode()) + len((d.text_pair or "").encode()) for d in documents)
    # This finds token ids that the model does not have, before anything is written.
    tokenizer.encode([d for d in documents if len(d.text) < _SAMPLE_CHARS])
    n_tokens = max(int(tokenizer.count(documents).sum()), 1)
    n_spans, config = 0, corpus.config
    if Level.SPAN in config.levels and span_file(config) is None:
        tokens = tokenizer.encode(documents) if needs_tokens(config.chunk) else None
        n_spans = len(spans_of(config, documents, tokens).document)
    return n_tokens / max(n_bytes, 1), n_spans / max(n_bytes, 1)


def spans_of(config: ExtractConfig, documents: Sequence[Document], tokens: Tokens | None) -> SpanRows:
    """Return the spans that settings give documents; `tokens` are needed for chunks of tokens."""
    if (file := span_file(config)) is not None:
        return file.of(documents)
    return find_spans(documents, tokens, config.spans, config.chunk)


def _row_cost(
    resolved: Resolved, config: ExtractConfig, tokens_per_byte: float, spans_per_byte: float
) -> Callable[[ScannedRow], int]:
    """Return the cost of a row as a function of its text; it is called for each row."""
    sizes = {level: row_bytes(level, columns, config.store_dtype) for level, columns in resolved.columns.items()}
    token_bytes, word_bytes, sentence_bytes, span_bytes = (
        sizes.get(level, 0) for level in (Level.TOKEN, Level.WORD, Level.SENTENCE, Level.SPAN)
    )
    n_texts = (Level.SENTENCE in sizes) + (config.chunk is not None)
    # The modes of the model's own sentence embedding are pooled in float32.
    pooled_bytes = 4 * len(resolved.sentence.modes) * resolved.model.hidden_size if resolved.sentence else 0

    def cost(row: ScannedRow) -> int:
        n_tokens = int(row.n_bytes * tokens_per_byte) + 2
        n_words = int(n_tokens * _WORDS_PER_TOKEN) + 1
        stored = n_tokens * token_bytes + n_words * word_bytes + sentence_bytes + row.n_bytes * n_texts
        n_spans = row.n_spans + math.ceil(row.n_bytes * spans_per_byte)
        working = n_tokens * _WORKING_BYTES_PER_TOKEN + n_spans * _WORKING_BYTES_PER_SPAN
        return max(stored + n_spans * span_bytes, working + pooled_bytes)

    return cost


def row_bytes(level: Level, columns: Sequence[FeatureColumn], dtype: StoreDtype) -> int:
    """Return the approximate size of a row on disk in bytes, without the text of a sentence."""
    return LEVELS[level].row_bytes + dtype.width * sum(column.dim for column in columns)


def level_schema(level: Level, corpus: CorpusSchema, features: tuple[FeatureColumn, ...]) -> LevelSchema:
    """Return the columns of a level: those that bertfeat writes, those of the corpus, and the vectors."""
    left_out = (*(() if corpus.has_pairs else PAIR_COLUMNS), *(() if corpus.has_span_pairs else SECOND_SPAN))
    first, *written = (c for c in LEVELS[level].columns if c not in left_out)
    own = {Level.WORD: corpus.annotations, Level.SPAN: corpus.spans, Level.SENTENCE: corpus.kept}.get(level, ())
    columns = (dataclasses.replace(first, type=corpus.id_type), *written, *own)
    names = [*(column.name for column in columns), *(feature.name for feature in features)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"column {name!r} of the input has the name of a column that bertfeat writes; rename it")
    return LevelSchema(level, columns, features)


def config_of(plan: Plan, settings: Mapping[str, Any] | None = None) -> ExtractConfig:
    """Return the settings that a plan was made with, and others that are given."""
    names = {field.name for field in dataclasses.fields(ExtractConfig)}
    planned = {name: value for name, value in plan.fields.items() if name in names}
    planned["device"] = plan.fields["device_kind"]
    return ExtractConfig.of(ExtractConfig.recorded(planned, settings or {}), {})


def corpus_schema(plan: Plan) -> CorpusSchema:
    """Return the columns of a plan's corpus, which `level_schema` has put into its levels."""
    own = {
        level: tuple(column for column in schema.columns if column.name not in {c.name for c in LEVELS[level].columns})
        for level, schema in plan.schemas.items()
    }
    first = next(iter(plan.schemas.values())).columns
    return CorpusSchema(
        id_type=first[0].type,
        kept=own.get(Level.SENTENCE, ()),
        annotations=own.get(Level.WORD, ()),
        has_pairs=any(column.name in {pair.name for pair in PAIR_COLUMNS} for column in first),
        kept_arrow=plan.kept_schema,
    )


def describe(fields: Mapping[str, Any], model: ModelInfo, **further: Any) -> dict[str, Any]:
    """Return what every part and the manifest say of a store: fields of its plan, facts of its model, and `further`."""
    return {
        **{name: fields.get(name, value) for name, value in _DESCRIBING.items()},
        "family": model.family,
        "weights_sha256": model.weights_sha256,
        "tokenizer_sha256": model.tokenizer_sha256,
        "n_layers": model.n_layers,
        "hidden_size": model.hidden_size,
        **further,
    }


def _advice(resolved: Resolved, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a store keeps of prompts, unknown words, rows, and the model's own sentence embedding."""
    told = {
        "prompt": resolved.prompt,
        "prompts": dict(resolved.prompts),
        "unknown_words": None if fields["unknown_words"] == UnknownWords.NULL else fields["unknown_words"],
        "sentence_sha256": resolved.sentence.sha256 if resolved.sentence else None,
        **{name: fields.get(name) for name in (*ROW_FILTERS, "spans", SPANS_DIGEST, "span_pooling", "chunk")},
        "span_pair": None if fields.get("span_pair") == SpanPair.NONE else fields.get("span_pair"),
        "chunk_context": fields.get("chunk_context") if fields.get("chunk") else None,
    }
    at_sentences = {"sentence_model": resolved.described} if {Level.SENTENCE, Level.SPAN} & {*resolved.columns} else {}
    return {name: value for name, value in told.items() if value} | at_sentences
