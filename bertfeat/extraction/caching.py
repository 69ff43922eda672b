"""Border between documents and the flow: those whose vectors are in a cache do not pass through it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.choices import Level
from bertfeat.extraction.flow import Encoded, Flow, PreparedText, run_together, tokens_of, vectors_of
from bertfeat.extraction.level_tables import ShardText, document_starts, rows_by_document
from bertfeat.extraction.vector_cache import VectorCache
from bertfeat.progress import Report
from bertfeat.records import BoolArray, Document, FeatureColumn, Float32Array, Pack, Receipt, ShardResult, ShardSpec

if TYPE_CHECKING:
    from bertfeat.extraction.run import ShardTask

# Texts in memory that are encoded and kept together.
_BATCH_TEXTS = 256


def _keys(digest: str, documents: Sequence[Document], kept: Iterable[list[Any]] | None = None) -> list[bytes]:
    """Return the key of each document: its text, its `kept` rows, and `digest`, of all else that decides vectors."""
    given = ([digest, each.text, each.text_pair, each.words] for each in documents)
    if kept is not None:
        given = ([*each, *rows] for each, rows in zip(given, kept, strict=True))
    return [hashlib.sha256(json.dumps(each).encode()).digest()[:16] for each in given]


class Split(NamedTuple):
    """A shard, its packs without those of known documents, the keys of all documents, and the values of the known."""

    whole: PreparedText
    rest: PreparedText
    keys: Sequence[bytes]
    known: Mapping[int, bytes]


@dataclass(frozen=True)
class Joined(Encoded):
    """A shard whose known documents get their rows in `finish`; `starts` are their first rows by level."""

    keys: Sequence[bytes]
    known: Mapping[int, bytes]
    starts: Mapping[Level, list[int]]

    def finish(self) -> ShardResult:
        """Wait for the rows that were encoded, and put the others beside them."""
        result = Encoded.finish(self)
        for number, value in self.known.items():
            at = 0
            for rows in self._rows(number):
                rows[...] = np.frombuffer(value, rows.dtype, rows.size, at).reshape(rows.shape)
                at += rows.nbytes
        return result

    def new_values(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the key and the value of each document that was encoded."""
        for number, key in enumerate(self.keys):
            if number not in self.known:
                yield key, b"".join(rows.tobytes() for rows in self._rows(number))

    def _rows(self, number: int) -> Iterator[npt.NDArray[Any]]:
        for level, starts in self.starts.items():
            for vectors in self.result.tables[level].vectors.values():
                yield vectors[starts[number] : starts[number + 1]]


class CachedTask:
    """A `ShardTask` that takes what it can from the cache, as it was when the run began, and encodes the rest."""

    def __init__(self, task: ShardTask, *, is_new: bool = False) -> None:
        self.task, self.n_writers = task, task.n_writers
        config = task.job.config
        self._place = (str(config.cache), config.cache_size)
        self._digest = task.flow.digest
        with VectorCache(*self._place) as cache:
            self._before = cache.begin(task.job.run_name, is_new=is_new)

    def prepare(self, shard: ShardSpec) -> Split:
        """Read and tokenize a shard, look up its documents, and leave out the windows of those that are known."""
        whole = self.task.prepare(shard)
        with whole.clock.time("recall"), VectorCache(*self._place) as cache:
            keys = _keys(self._digest, whole.text.documents, rows_by_document(whole.text))
            found = cache.get(dict.fromkeys(keys), self._before)
        known = {number: found[key] for number, key in enumerate(keys) if key in found}
        if not known:
            return Split(whole, whole, keys, known)
        text, is_new = whole.text, np.array([key not in found for key in keys])
        packs, alone_packs = self._packs(text, is_new), whole.alone_packs
        if text.alone is not None and text.spans is not None:
            alone_packs = self._packs(text.alone, is_new[text.spans.document])
        return Split(whole, dataclasses.replace(whole, packs=packs, alone_packs=alone_packs), keys, known)

    def _packs(self, text: ShardText, is_new: BoolArray) -> list[Pack]:
        """Return the packs of the windows of new documents, bool (n_documents,)."""
        wanted, needed = is_new[text.windows.ranges.document], text.needed_windows
        return self.task.flow.packs(text.windows, wanted if needed is None else wanted & needed)

    def encode(self, split: Split, report: Report) -> Joined:
        """Encode the rest."""
        whole, rest, keys, known = split
        n_all = tokens_of(whole.all_packs)
        n_cached = n_all - tokens_of(rest.all_packs)
        report(0, 0, n_all)
        encoded = self.task.encode(rest, lambda n, n_tokens, _: report(len(known) + n, n_cached + n_tokens, n_all))
        notes = {**encoded.result.notes, "n_cached_documents": len(known), "n_cached_tokens": n_cached}
        result = dataclasses.replace(encoded.result, counts=whole.counts(), notes=notes)
        starts = {level: document_starts(level, whole.text).tolist() for level in result.tables}
        return Joined(result, encoded.fetches, keys, known, starts)

    def commit(self, shard: ShardSpec, joined: Joined) -> Receipt:
        """Write the shard; once it is safe on disk, add what was encoded to the cache."""
        receipt = self.task.commit(shard, joined)
        with VectorCache(*self._place) as cache:
            cache.put(joined.new_values())
        return receipt


def cached_vectors(flows: Sequence[Flow], column: FeatureColumn, documents: Sequence[Document]) -> Float32Array:
    """Return a column that the first flow gives documents, float32 (n_documents, dim).

    Only texts that the cache does not know go through the flows: one run of the network gives all columns of them.
    """
    config = flows[0].config
    if config.cache is None:
        return flows[0].vectors(documents)
    keys = _keys(flows[0].digest + column.name, documents)
    texts = dict(zip(keys, documents, strict=True))
    with VectorCache(config.cache, config.cache_size) as cache:
        found = cache.get(texts)
        missing = [key for key in texts if key not in found]
        for start in range(0, len(missing), _BATCH_TEXTS):
            some = missing[start : start + _BATCH_TEXTS]
            # Processes that encode the same texts take turns, so that each is encoded once.
            with cache.turn():
                found |= cache.get(some)
                if new := [key for key in some if key not in found]:
                    made = dict(_values(flows, [texts[key] for key in new]))
                    cache.put(made.items())
                    found |= {key: made[key] for key in new}
    values = bytearray(b"".join(found[key] for key in keys))
    return np.frombuffer(values, np.float32).reshape(len(documents), column.dim)


def _values(flows: Sequence[Flow], documents: Sequence[Document]) -> Iterator[tuple[bytes, bytes]]:
    for flow, tables in zip(flows, run_together(flows, documents), strict=True):
        table = tables[Level.SENTENCE]
        for name in table.vectors:
            keys = _keys(flow.digest + name, documents)
            yield from zip(keys, map(np.ndarray.tobytes, vectors_of(table, name)), strict=True)
