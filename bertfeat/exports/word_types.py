"""Mean vectors of the word types of a store, written as word vectors in text (Bommasani et al. 2020)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bertfeat.durable.files import make_parents
from bertfeat.durable.output_check import check_file
from bertfeat.durable.publication import publish_file
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS, WORDS
from bertfeat.progress import Progress, reporting
from bertfeat.records import Float64Array, IntArray
from bertfeat.storage import local_path
from bertfeat.store.reader import Store

_ROWS_AT_ONCE = 8192
_LINES_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class WordTypes:
    """A written file of word types; `n_rare` types have too few rows, `n_left_out` have whitespace."""

    path: Path
    feature: str
    dim: int
    n_types: int
    n_rows: int
    n_bytes: int
    n_rare: int
    n_left_out: int
    n_without_vector: int


class _Sums:
    """Sums of the vectors of each word type, in float64; memory grows with the types, not with the rows."""

    def __init__(self, dim: int) -> None:
        self.types: dict[str, int] = {}
        self.n_without_vector = 0
        self.sums: Float64Array = np.zeros((1024, dim))
        self.counts: IntArray = np.zeros(1024, np.int64)

    def add(self, words: list[str], vectors: Any) -> None:
        """Add rows: their words, and their vectors (n_rows, dim), NaN for a row without one."""
        has_vector = ~np.isnan(vectors[:, 0])
        self.n_without_vector += int(np.count_nonzero(~has_vector))
        chosen = itertools.compress(words, has_vector.tolist())
        numbers = np.array([self.types.setdefault(word, len(self.types)) for word in chosen], np.int64)
        if not len(numbers):
            return
        while len(self.types) > len(self.counts):
            self.sums = np.concatenate([self.sums, np.zeros_like(self.sums)])
            self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
        order = np.argsort(numbers, kind="stable")
        distinct, first, n = np.unique(numbers[order], return_index=True, return_counts=True)
        self.sums[distinct] += np.add.reduceat(vectors[has_vector][order].astype(np.float64), first, axis=0)
        self.counts[distinct] += n


def write_word_types(
    store: Store,
    output: str | Path,
    *,
    level: str | None = None,
    feature: str | None = None,
    min_count: int = 1,
    lower: bool = False,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
) -> WordTypes:
    """Write the mean vector of each word type with `min_count` rows or more as word2vec's text."""
    where = store.choose_level(level, WORDS)
    entry = LEVELS[where]
    if not entry.surface:
        raise UserError(f"`level='{level}'`: a row is a whole text, which has no word; pass `level='word'`")
    names = [column.name for column in store.features(where)]
    if feature is None and len(names) > 1:
        raise UserError(f"{store.path}: several features at level {where}: {', '.join(names)}; name one: `feature`")
    found = store.feature(where, feature or names[0])
    path = local_path(output, "a file of word vectors")
    check_file(path, overwrite=overwrite, endings=(".txt", ".vec"))
    make_parents(path)
    sums, n_rows = _Sums(found.dim), store.n_rows(where)
    with reporting(progress) as reports:
        for batch in store.batches(where, found.name, batch_size=_ROWS_AT_ONCE, columns=[entry.surface]):
            reports.stage("reading vectors", batch.rows.start, n_rows)
            words = batch.columns[entry.surface].to_list()
            if None in words:
                row = batch.rows.start + words.index(None)
                raise UserError(f"{store.path}: row {row} of level {where} has no word; import the vectors with words")
            sums.add([word.lower() for word in words] if lower else words, batch.vectors)
    counts = sums.counts.tolist()
    frequent = [(word, number) for word, number in sums.types.items() if counts[number] >= min_count]
    kept = [(word, number) for word, number in frequent if word.split() == [word]]
    # The most frequent first, and words of one count by code points.
    kept.sort(key=lambda item: (-counts[item[1]], item[0]))
    if not kept:
        raise UserError(f"{store.path}: no type at level {where} has a vector and {min_count} rows or more")
    with publish_file(path) as sink:
        sink.write(f"{len(kept)} {found.dim}\n".encode())
        for start in range(0, len(kept), _LINES_AT_ONCE):
            words, numbers = map(list, zip(*kept[start : start + _LINES_AT_ONCE], strict=True))
            means = (sums.sums[numbers] / sums.counts[numbers, None]).astype(np.float32)
            sink.write(vector_lines(words, means))
        n_bytes = sink.n_bytes
    return WordTypes(
        path=path,
        feature=found.name,
        dim=found.dim,
        n_types=len(kept),
        n_rows=sum(counts[number] for _, number in kept),
        n_bytes=n_bytes,
        n_rare=len(sums.types) - len(frequent),
        n_left_out=len(frequent) - len(kept),
        n_without_vector=sums.n_without_vector,
    )


def vector_lines(keys: Sequence[str], vectors: Any) -> bytes:
    """Return word2vec's lines of a key and its values; see `joined_values`."""
    return "".join(f"{key} {row}\n" for key, row in zip(keys, joined_values(vectors), strict=True)).encode()


def joined_values(vectors: Any, separator: str = " ") -> list[str]:
    """Return the values of each row (n_rows, dim) as one text, each with the fewest digits that give its float32."""
    n_rows, dim = vectors.shape
    digits = pa.array(vectors.reshape(-1).astype(np.float32, copy=False)).cast(pa.string())
    rows = pa.ListArray.from_arrays(np.arange(0, n_rows * dim + 1, dim, dtype=np.int32), digits)
    found: list[str] = pc.binary_join(rows, separator).to_pylist()
    return found
