"""The flow from documents to tables, top to bottom.

corpus -> documents -> tokens -> windows -> packs -> encoder -> hidden states -> pooled features -> tables

`extract` runs it on each shard, `Encoder` and `BertFeatures` on texts in memory, the estimate and the deep check on a
sample of the corpus.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.encoder.encoder import PackEncoder, memory_errors
from bertfeat.encoder.lanes import encode_packs
from bertfeat.encoder.transfers import Fetches
from bertfeat.extraction.documentcache import DocumentCache, Recalled
from bertfeat.extraction.encodedcount import EncodedCount
from bertfeat.extraction.leveltables import Buffer, align, level_table, make_buffers
from bertfeat.extraction.pooling import Finish
from bertfeat.extraction.preparedtext import PreparedText, packs_of, tokens_of
from bertfeat.extraction.resolution import Resolved
from bertfeat.progress import Report, unreported
from bertfeat.records import BadRow, Document, LevelSchema, LevelTable, Pack, ShardResult
from bertfeat.stopwatch import Stopwatch
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import cut_windows


@dataclass(frozen=True, slots=True)
class Flow:
    """The flow, with the settings, the tokenizer and the encoder that it needs; `cache` is None without a cache."""

    config: ExtractConfig
    schemas: Mapping[Level, LevelSchema]
    resolved: Resolved
    tokenizer: Tokenizer
    encoder: PackEncoder
    finish: Finish | None = None  # makes the model's own sentence embedding, if that is asked for
    cache: DocumentCache | None = None

    def prepare(self, rows: Iterable[Document | BadRow]) -> PreparedText:
        """Read and tokenize documents, cut windows, find the rows of every level, and pack the windows."""
        clock, limits = Stopwatch(), self.resolved.limits
        with clock.time("read"):
            rows = list(rows)
        documents = [row for row in rows if isinstance(row, Document)]
        with clock.time("tokenize"):
            tokens = self.tokenizer.encode(documents, max_tokens=limits.max_tokens(self.config.levels))
        with clock.time("align"):
            windows = cut_windows(tokens, self.tokenizer, limits, documents, context=self.config.document_context)
            text = align(documents, tokens, windows, self.tokenizer, self.config, self.resolved.sentence)
        with clock.time("pack"):
            packs = packs_of(windows, self.resolved.max_batch_tokens, self.encoder.device)
        return PreparedText(text, packs, [row for row in rows if isinstance(row, BadRow)], clock)

    def encode(self, prepared: PreparedText, report: Report) -> ShardResult:
        """Run the encoder once and pool every level from its states; rows are in the order of the documents."""
        encoder, text, clock = self.encoder, prepared.text, prepared.clock
        buffers = make_buffers(text, self.schemas, self.config, self.resolved, self.finish, encoder.device)
        fetches, n_halvings = Fetches(encoder.device), encoder.n_halvings
        packs, recalled = prepared.packs, None
        if self.cache is not None:
            with clock.time("recall"):
                recalled = self.cache.look_up(text, self.schemas)
                packs = packs_of(text.windows, self.resolved.max_batch_tokens, encoder.device, recalled.missing)
        self.fill(buffers.values(), prepared, report, packs)
        with memory_errors(encoder.device):
            tables = {
                level: level_table(level, text, buffer, self.schemas[level], self.tokenizer, fetches)
                for level, buffer in buffers.items()
            }
        notes = {**prepared.notes(), "n_halvings": encoder.n_halvings - n_halvings}
        result = ShardResult(tables, prepared.bad_rows, prepared.counts(), dict(clock.seconds), notes, fetches.wait)
        if recalled is None:
            return result
        return _with_cache(result, recalled, tokens_of(prepared.packs) - tokens_of(packs), clock)

    def fill(self, buffers: Iterable[Buffer], prepared: PreparedText, report: Report, packs: Sequence[Pack]) -> None:
        """Run the encoder once on packs and pool its states into each buffer."""
        encoder, clock = self.encoder, prepared.clock
        count = EncodedCount(prepared, packs, report)
        for pack, states in clock.each("encode", encode_packs(encoder, packs)):
            with clock.time("pool"), memory_errors(encoder.device):
                for buffer in buffers:
                    buffer.add(pack, states)
            del states
            count.add(pack)

    def run(self, documents: Iterable[Document]) -> Mapping[Level, LevelTable]:
        """Return the tables of documents, with all vectors on the host."""
        result = self.encode(self.prepare(documents), unreported)
        result.wait()
        return result.tables


def _with_cache(result: ShardResult, recalled: Recalled, n_tokens: int, clock: Stopwatch) -> ShardResult:
    """Return a result that reads the `n_tokens` that are in a cache in `wait`, and keeps the others there in `keep`."""

    def wait() -> Mapping[str, float]:
        seconds = result.wait()
        with clock.time("recall"):
            recalled.read(result.tables)
        return {**seconds, "recall": clock.seconds["recall"]}

    notes = {**result.notes, "n_cached_documents": recalled.n_documents, "n_cached_tokens": n_tokens}
    return dataclasses.replace(result, notes=notes, wait=wait, keep=partial(recalled.keep, result.tables))
