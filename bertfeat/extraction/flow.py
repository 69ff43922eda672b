"""The flow from documents to tables, top to bottom.

corpus -> documents -> tokens -> windows -> packs -> encoder -> hidden states -> pooled features -> tables

`extract` runs it on each shard, `Encoder` and `BertFeatures` on texts in memory, the estimate and the deep check on a
sample of the corpus.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.encoder.encoder import PackEncoder, memory_errors
from bertfeat.encoder.lanes import encode_packs, pack_budget
from bertfeat.encoder.transfers import Fetches
from bertfeat.extraction.encodedcount import EncodedCount
from bertfeat.extraction.leveltables import ShardText, align, level_table, make_buffers
from bertfeat.extraction.pooling import Finish
from bertfeat.extraction.preparedtext import PreparedText
from bertfeat.extraction.resolution import Resolved
from bertfeat.progress import Report, unreported
from bertfeat.records import BadRow, BoolArray, Document, LevelSchema, LevelTable, Pack, ShardResult
from bertfeat.stopwatch import Stopwatch
from bertfeat.text.packing import pack_windows
from bertfeat.text.tokenizer import Tokenizer
from bertfeat.text.windows import Windows, cut_windows

Tables = Mapping[Level, LevelTable]


@dataclass(frozen=True)
class Encoded:
    """A shard that went through the encoder: its result, and copies of its vectors from a GPU, perhaps not done."""

    result: ShardResult
    fetches: Fetches

    def finish(self) -> ShardResult:
        """Wait for the copies, and return the result with all vectors, and with the seconds that a GPU took."""
        seconds = self.fetches.wait()
        return dataclasses.replace(self.result, seconds={**self.result.seconds, **seconds})


@dataclass(frozen=True, slots=True)
class Flow:
    """The flow, with the settings, the tokenizer and the encoder that it needs."""

    config: ExtractConfig
    schemas: Mapping[Level, LevelSchema]
    resolved: Resolved
    tokenizer: Tokenizer
    encoder: PackEncoder
    finish: Finish | None = None  # makes the model's own sentence embedding, if that is asked for

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
            packs = self.packs(windows)
        return PreparedText(text, packs, [row for row in rows if isinstance(row, BadRow)], clock)

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


def run_together(flows: Sequence[Flow], documents: Sequence[Document]) -> list[Tables]:
    """Run the encoder once, and return what `run` of each flow does; they differ in their poolings only."""
    prepared, fetches = flows[0].prepare(documents), Fetches(flows[0].encoder.device)
    tokens, windows = prepared.text.tokens, prepared.text.windows
    texts = [align(documents, tokens, windows, flow.tokenizer, flow.config, flow.resolved.sentence) for flow in flows]
    tables = _pooled(flows, texts, prepared, fetches, unreported)
    fetches.wait()
    return tables


def _pooled(
    flows: Sequence[Flow], texts: Sequence[ShardText], prepared: PreparedText, fetches: Fetches, report: Report
) -> list[Tables]:
    """Run the encoder once on packs, and pool its states into the rows that each flow finds in them."""
    encoder, clock, count = flows[0].encoder, prepared.clock, EncodedCount(prepared, report)
    buffers = [
        make_buffers(text, flow.schemas, flow.config, flow.resolved, flow.finish, encoder.device)
        for flow, text in zip(flows, texts, strict=True)
    ]
    for pack, states in clock.each("encode", encode_packs(encoder, prepared.packs)):
        with clock.time("pool"), memory_errors(encoder.device):
            for buffer in (buffer for levels in buffers for buffer in levels.values()):
                buffer.add(pack, states)
        del states
        count.add(pack)
    with memory_errors(encoder.device):
        return [
            {
                level: level_table(level, text, buffer, flow.schemas[level], flow.tokenizer, fetches)
                for level, buffer in found.items()
            }
            for flow, text, found in zip(flows, texts, buffers, strict=True)
        ]
