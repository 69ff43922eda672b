"""The flow from documents to tables, top to bottom.

corpus -> documents -> tokens -> windows -> packs -> encoder -> hidden states -> pooled features -> tables

`extract` runs it on each shard, `Encoder` and `BertFeatures` on texts in memory, searches and probes on queries and new
texts, the estimate and the deep check on a sample of the corpus.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus import CorpusSchema
from bertfeat.devices import memory_errors, resolve_device
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.device_copies import Fetches
from bertfeat.encoder.encoder import PackEncoder, encode_packs, pack_budget
from bertfeat.encoder.loading import load_encoder
from bertfeat.encoder.sentence_steps import load_steps
from bertfeat.errors import ConfigError
from bertfeat.extraction.level_tables import ShardText, align, keep_rows, level_table, make_buffers
from bertfeat.extraction.plan import level_schema, spans_of, vector_digest
from bertfeat.extraction.pooling import Finish, needs_pooler
from bertfeat.extraction.resolution import Resolved, check_model, resolve
from bertfeat.progress import Report, unreported
from bertfeat.records import (
    BadRow,
    BoolArray,
    Document,
    FeatureColumn,
    Float32Array,
    LevelSchema,
    LevelTable,
    Pack,
    ShardResult,
    SpanRows,
)
from bertfeat.store.provenance import FeatureSpec
from bertfeat.text.packing import pack_windows
from bertfeat.text.spans import chunk_documents, needs_tokens
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import Windows, cut_windows

Tables = Mapping[Level, LevelTable]
ItemT = TypeVar("ItemT")
_POOLING = "pooling; pass a smaller `max_batch_tokens`"


@dataclass(frozen=True, slots=True)
class PreparedText:
    """Documents that are ready for the encoder, and the rows that could not be read.

    `packs` are of the windows of documents, `alone_packs` of those of chunks that are encoded alone.
    """

    text: ShardText
    packs: Sequence[Pack]
    alone_packs: Sequence[Pack]
    bad_rows: Sequence[BadRow]
    clock: Stopwatch

    @property
    def all_packs(self) -> Sequence[Pack]:
        """The packs of documents, then those of chunks."""
        return [*self.packs, *self.alone_packs]

    def counts(self) -> dict[str, int]:
        """Return the numbers of documents, tokens, windows and packs, for the receipt."""
        return {
            "n_documents": len(self.text.documents),
            **self.text.counts(),
            "n_packs": len(self.all_packs),
            "n_encoded_tokens": tokens_of(self.all_packs),
            "n_repeated_windows": sum(len(pack.copies) for pack in self.all_packs),
        }

    def notes(self) -> dict[str, int]:
        """Return the number of documents without a token, and the number of the longest one, from 1, and its tokens."""
        sizes = self.text.n_tokens_of_documents
        if not len(sizes):
            return {}
        longest = int(sizes.argmax())
        found = {"n_empty_documents": int((sizes == 0).sum())}
        return {**found, "longest_document": self.text.documents[longest].index + 1, "n_longest": int(sizes[longest])}


def tokens_of(packs: Sequence[Pack]) -> int:
    """Return the number of tokens in packs, special tokens included."""
    return sum(pack.n_tokens for pack in packs)


@dataclass(frozen=True)
class Encoded:
    """A shard that went through the encoder: its result, and copies of its vectors from a GPU, perhaps not done."""

    result: ShardResult
    fetches: Fetches

    def finish(self) -> ShardResult:
        """Wait for the copies, and return the result with all vectors, and with the seconds that a GPU took."""
        seconds = self.fetches.wait()
        return dataclasses.replace(self.result, seconds={**self.result.seconds, **seconds})


class Loaded(NamedTuple):
    """An encoder, and what makes the model's own sentence embedding; None if that is not asked for."""

    encoder: PackEncoder
    finish: Finish | None = None


class Network:
    """A model's network that threads may share: loaded on first use, up to the highest layer of the settings."""

    def __init__(
        self, checkpoint: Checkpoint, config: ExtractConfig, resolved: Resolved, device: torch.device | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.lock = RLock()
        # By their settings.
        self.flows: dict[ExtractConfig, Flow] = {}
        self._config, self._resolved, self._device = config, resolved, device
        self._loaded: Loaded | None = None

    def load(self) -> Loaded:
        """Load the network if that was not done before."""
        with self.lock:
            self._loaded = self._loaded or self._load()
            return self._loaded

    def _load(self) -> Loaded:
        device = self._device or resolve_device(self._config.device)[0]
        columns = [column for found in self._resolved.columns.values() for column in found]
        encoder = load_encoder(
            self.checkpoint,
            sorted({layer for column in columns for layer in column.layers}),
            device=device,
            compute_dtype=getattr(torch, self._resolved.compute_dtype),
            with_pooler=needs_pooler(self._config),
        )
        if (sentence := self._resolved.sentence) is None:
            return Loaded(encoder)
        return Loaded(encoder, load_steps(sentence, device))


@dataclass(frozen=True)
class Flow:
    """The flow, with the settings, the tokenizer and the network that it needs; threads may share it."""

    config: ExtractConfig
    schemas: Mapping[Level, LevelSchema]
    resolved: Resolved
    tokenizer: Tokenizer
    network: Network

    @classmethod
    def of(cls, config: ExtractConfig, checkpoint: Checkpoint | None = None) -> Self:
        """Return the flow of documents in memory, each of them alone; `checkpoint` is the model, if it is open."""
        config = dataclasses.replace(config, document_context=False).effective()
        checkpoint = checkpoint or open_checkpoint(config.model, config.revision)
        tokenizer, resolved = resolve(config, checkpoint, given_words=config.is_split_into_words)
        return cls(config, _schemas(config, resolved), resolved, tokenizer, Network(checkpoint, config, resolved))

    @classmethod
    def of_feature(cls, spec: FeatureSpec, *, mine: str, **settings: Any) -> Self:
        """Return the flow that encodes documents as a store's feature; `mine` names what has it, for messages."""
        config = spec.extract_config(**settings)
        checkpoint = open_checkpoint(config.model, config.revision)
        check_model(spec, checkpoint, mine=mine)
        return cls.of(config, checkpoint)

    def under(self, config: ExtractConfig, documents: Sequence[Document] = ()) -> Flow:
        """Return the flow with other settings, for documents of this kind; it shares the network and its layers."""
        if documents:
            words, pairs = documents[0].words is not None, documents[0].text_pair is not None
            config = dataclasses.replace(config, is_split_into_words=words, text_pairs=pairs)
        with self.network.lock:
            known = self.network.flows
            if config not in known:
                words = config.is_split_into_words
                # Loading a tokenizer takes longer than anything else here.
                alike = (flow for flow in (self, *known.values()) if flow.config.is_split_into_words == words)
                loaded = next((flow.tokenizer for flow in alike), None)
                tokenizer, resolved = resolve(config, self.network.checkpoint, given_words=words, tokenizer=loaded)
                schemas = _schemas(config, resolved)
                known[config] = Flow(config, schemas, resolved, tokenizer, self.network)
            return known[config]

    @property
    def encoder(self) -> PackEncoder:
        """The encoder."""
        return self.network.load().encoder

    @property
    def only_column(self) -> FeatureColumn:
        """The vector column of the sentence level."""
        columns = self.resolved.columns[Level.SENTENCE]
        if len(columns) > 1:
            raise ConfigError(f"combine none gives {len(columns)} columns; choose concat, sum or mean")
        return columns[0]

    @cached_property
    def digest(self) -> str:
        """A digest (hex) of all that decides a vector, but for the document: model, settings and versions."""
        return vector_digest(self.config, self.resolved)

    def prepare(self, rows: Iterable[Document | BadRow], spans: SpanRows | None = None) -> PreparedText:
        """Read and tokenize documents, cut windows, find the rows of every level, and pack the windows.

        `spans` are given ones; by default those of the settings.
        """
        clock, limits = Stopwatch(), self.resolved.limits
        with clock.time("read"):
            rows = list(rows)
        documents = [row for row in rows if isinstance(row, Document)]
        config, alone, in_whole = self.config, None, documents
        if config.levels == (Level.SPAN,) and config.has_chunks_alone:
            in_whole = documents if needs_tokens(config.chunk) else []
        with clock.time("tokenize"):
            tokens = self.tokenizer.encode(in_whole, max_tokens=limits.max_tokens(config.levels))
            if Level.SPAN in config.levels and spans is None:
                spans = spans_of(config, documents, tokens)
            if spans is not None and config.has_chunks_alone:
                alone = self._alone(chunk_documents(spans, documents))
                if config.levels == (Level.SPAN,):
                    tokens, in_whole = self.tokenizer.encode([]), []
        with clock.time("align"):
            windows = cut_windows(tokens, self.tokenizer, limits, in_whole, context=config.document_context)
            text = align(documents, tokens, windows, self.tokenizer, config, self.resolved.sentence, spans, alone)
            text = keep_rows(text, self.schemas, config, self.tokenizer)
        with clock.time("pack"):
            packs = self.packs(windows, text.needed_windows)
            alone_packs = [] if text.alone is None else self.packs(text.alone.windows, text.alone.needed_windows)
        return PreparedText(text, packs, alone_packs, [row for row in rows if isinstance(row, BadRow)], clock)

    def _alone(self, chunks: Sequence[Document]) -> ShardText:
        """Tokenize chunks, and find the rows that each of them is as a sentence."""
        config = dataclasses.replace(self.config, levels=(Level.SENTENCE,), chunk=None, rows=None, positions=())
        tokens = self.tokenizer.encode(chunks, max_tokens=self.resolved.limits.max_tokens(config.levels))
        windows = cut_windows(tokens, self.tokenizer, self.resolved.limits, chunks)
        return align(chunks, tokens, windows, self.tokenizer, config, self.resolved.sentence)

    def packs(self, windows: Windows, wanted: BoolArray | None = None) -> list[Pack]:
        """Make packs of windows, or of those that are wanted, bool (n_windows,)."""
        n_tokens = int(windows.lengths.sum() if wanted is None else windows.lengths[wanted].sum())
        budget = pack_budget(n_tokens, self.resolved.max_batch_tokens, self.encoder.device)
        return list(pack_windows(windows, budget, wanted))

    def encode(self, prepared: PreparedText, report: Report) -> Encoded:
        """Run the encoder once and pool every level from its states; rows are in the order of the documents."""
        encoder, clock = self.encoder, prepared.clock
        fetches, n_halvings = Fetches(encoder.device), encoder.n_halvings
        (tables,) = _pooled([self], [prepared.text], prepared, fetches, report)
        notes = {**prepared.notes(), "n_halvings": encoder.n_halvings - n_halvings}
        return Encoded(ShardResult(tables, prepared.bad_rows, prepared.counts(), dict(clock.seconds), notes), fetches)

    def run(self, documents: Iterable[Document]) -> Tables:
        """Return the tables of documents, with all vectors on the host."""
        return self.encode(self.prepare(documents), unreported).finish().tables

    def vectors(self, documents: Sequence[Document]) -> Float32Array:
        """Return one vector per document: float32 (n_documents, dim), NaN for a document without tokens."""
        column = self.only_column
        return vectors_of(self.run(documents)[Level.SENTENCE], column.name)


def run_together(flows: Sequence[Flow], documents: Sequence[Document], spans: SpanRows | None = None) -> list[Tables]:
    """Run the encoder once, and return what `run` of each flow does; they differ in their poolings only.

    `spans` are those of the span level. The windows are those of the last flow, which needs the most.
    """
    prepared, fetches = flows[-1].prepare(documents, spans), Fetches(flows[0].encoder.device)
    tokens, windows = prepared.text.tokens, prepared.text.windows
    texts = [
        align(documents, tokens, windows, flow.tokenizer, flow.config, flow.resolved.sentence, spans) for flow in flows
    ]
    tables = _pooled(flows, texts, prepared, fetches, unreported)
    fetches.wait()
    return tables


def _pooled(
    flows: Sequence[Flow], texts: Sequence[ShardText], prepared: PreparedText, fetches: Fetches, report: Report
) -> list[Tables]:
    """Run the encoder once on packs, and pool its states into the rows that each flow finds in them."""
    (encoder, finish), clock = flows[0].network.load(), prepared.clock
    device = encoder.device
    count = _EncodedCount(prepared, report)
    buffers = [
        make_buffers(text, flow.schemas, flow.config, flow.resolved, finish if flow.resolved.sentence else None, device)
        for flow, text in zip(flows, texts, strict=True)
    ]
    n_windows = len(prepared.text.windows)
    for packs, first, is_alone in ((prepared.packs, 0, False), (prepared.alone_packs, n_windows, True)):
        found = zip(texts, buffers, strict=True)
        mine = [own for text, levels in found for level, own in levels.items() if text.is_alone(level) is is_alone]
        for pack, states in clock.each("encode", encode_packs(encoder, packs)):
            with clock.time("pool"), memory_errors(device, _POOLING):
                for buffer in mine:
                    buffer.add(pack, states)
            del states
            count.add(pack, first)
    with memory_errors(device, _POOLING):
        return [
            {
                level: level_table(level, text, buffer, flow.schemas[level], flow.tokenizer, fetches)
                for level, buffer in found.items()
            }
            for flow, text, found in zip(flows, texts, buffers, strict=True)
        ]


class _EncodedCount:
    """Counter of what is encoded of a shard; reports the start, and the state after each pack.

    A document is encoded when all its windows are. With document context, a window counts for its first document and
    for those after it that have no window of their own.
    """

    def __init__(self, prepared: PreparedText, report: Report) -> None:
        text = prepared.text
        document = text.windows.ranges.document
        if text.alone is not None and text.spans is not None:
            document = np.append(document, text.spans.document[text.alone.windows.ranges.document])
        owners, self._owner, self._n_left = np.unique(document, return_inverse=True, return_counts=True)
        self._n_documents = np.diff(owners, append=len(text.documents))
        self._n_tokens, self._n_in_all, self._report = 0, tokens_of(prepared.all_packs), report
        self._report(0, 0, self._n_in_all)

    def add(self, pack: Pack, first: int) -> None:
        """Count a pack, or the part of one, of windows that are numbered from `first` on."""
        np.subtract.at(self._n_left, self._owner[first + pack.served[0]], 1)
        self._n_tokens += pack.n_tokens
        self._report(int(self._n_documents[self._n_left == 0].sum()), self._n_tokens, self._n_in_all)


class Stopwatch:
    """Adds up the seconds of named stages."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the wall-clock seconds of the block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def each(self, stage: str, items: Iterable[ItemT]) -> Iterator[ItemT]:
        """Yield items, and add the time of waiting for them to a stage."""
        following = iter(items)
        while True:
            with self.time(stage):
                try:
                    item = next(following)
                except StopIteration:
                    return
            yield item
            # Free it before the next one is made: on a GPU, hidden states take most of the memory.
            del item


def vectors_of(table: LevelTable, column: str) -> Float32Array:
    """Return the vectors of a column, (n_rows, dim) as float32, with NaN in rows that have none."""
    vectors: Float32Array = table.vectors[column].astype(np.float32, copy=False)
    if table.valid is not None:
        vectors[~table.valid] = np.nan
    return vectors


def _schemas(config: ExtractConfig, resolved: Resolved) -> dict[Level, LevelSchema]:
    corpus = CorpusSchema(has_pairs=config.text_pairs)
    return {level: level_schema(level, corpus, columns) for level, columns in resolved.columns.items()}
