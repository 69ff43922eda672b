"""Files of spans: a table with the document and the bounds of each span, and further columns that are kept."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bertfeat.choices import Level
from bertfeat.corpus.corpus import endings_of, local_file
from bertfeat.corpus.formats import readers_by_ending
from bertfeat.corpus.tables import read_table
from bertfeat.errors import InputError, no_column
from bertfeat.levels import LEVELS
from bertfeat.ragged import ragged_arange, run_of, word_bounds
from bertfeat.records import BoolArray, Column, Document, IntArray, SpanRows

_BOUNDS = (("char_start", "char_end"), ("word_start", "word_end"))
_KINDS = (pl.String, pl.Boolean, pl.Int64, pl.Float64)


def is_span_file(spans: str | None) -> bool:
    """Return whether `spans` names a file and not a rule: there is such a file, or its ending is one of tables."""
    if spans is None or spans.startswith("words:"):
        return False
    ending, _ = endings_of(spans)
    reader = readers_by_ending(ending).get(ending)
    # pathlib raises an error where a pattern is longer than a name may be.
    return os.path.isfile(spans) or (reader is not None and reader.has_columns)  # noqa: PTH113


@functools.lru_cache(maxsize=1)
def _opened(path: str, _: tuple[int, int]) -> SpanFile:
    return SpanFile.read(path)


def open_spans(path: str) -> SpanFile:
    """Return a file of spans; it is read once in a process, unless it changes."""
    try:
        status = os.stat(path)  # noqa: PTH116
        return _opened(path, (status.st_mtime_ns, status.st_size))
    except FileNotFoundError:
        return SpanFile.read(path)


@dataclass(frozen=True, eq=False)
class SpanFile:
    """The spans of a file, in memory: of each document, in the order of the file.

    `table` has `doc_id`, `row` (from 1 on, in the file), `start` and `end`, the same with `_2` for `pairs`, and the
    further `columns`. Bounds count characters, or with `in_words` given words.
    """

    path: str
    digest: str
    table: pl.DataFrame
    columns: tuple[Column, ...]
    in_words: bool
    pairs: bool

    @classmethod
    def read(cls, path: str) -> SpanFile:
        """Read a file, and check its columns and values."""
        digest, frame = local_file(path).digest, read_table(path)
        bounds = next((pair for pair in _BOUNDS if pair[0] in frame.columns), _BOUNDS[0])
        pairs = f"{bounds[0]}_2" in frame.columns
        names = ["doc_id", *bounds, *((f"{name}_2" for name in bounds) if pairs else ())]
        for name in names:
            if name not in frame.columns:
                raise InputError(
                    f"{no_column(name, frame.columns)}; spans have doc_id, char_start and char_end", path=path
                )
        table = frame.select(pl.col("doc_id").cast(pl.String), pl.int_range(1, pl.len() + 1).alias("row"))
        for name, short in zip(names[1:], ("start", "end", "start_2", "end_2"), strict=False):
            table = table.with_columns(_whole(frame[name], path).alias(short))
        own = {column.name for column in LEVELS[Level.SPAN].columns} - set(names)
        kept = [name for name in frame.columns if name not in names]
        for name in kept:
            if name in own:
                raise InputError(f"column {name!r} has the name of a column that bertfeat writes; rename it", path=path)
        table = table.hstack([_simple(frame[name], path) for name in kept])
        missing = table["doc_id"].is_null()
        if missing.any():
            raise InputError("has no doc_id", path=path, row=int(missing.arg_true()[0]) + 1)
        columns = tuple(Column(name, _ARROW[table.schema[name]]) for name in kept)
        return cls(path, digest, table.sort("doc_id", maintain_order=True), columns, bounds[0] == "word_start", pairs)

    def check(self, parts: Iterable[Sequence[Document]], *, is_all: bool) -> None:
        """Check that each span lies in its document; and if documents in all parts are all, that no span is of another.

        Raises:
            InputError: A span is wrong; the message names the row.
        """
        seen = np.zeros(len(self.table), np.bool_)
        for documents in parts:
            self.of(documents)
            seen[self._rows(documents)[0]] = True
        if is_all and not seen.all():
            unknown = self.table.filter(~pl.Series(seen)).sort("row").row(0, named=True)
            reason = f"document {unknown['doc_id']!r} is not in the corpus; check the ids, or leave the span out"
            raise InputError(reason, path=self.path, row=unknown["row"])

    def of(self, documents: Sequence[Document]) -> SpanRows:
        """Return the spans of documents."""
        rows, n = self._rows(documents)
        found, document = self.table[rows], run_of(n)
        columns = {column.name: found[column.name].to_list() for column in self.columns}
        second = self._bounded(documents, document, found, "_2") if self.pairs else None
        first = self._bounded(documents, document, found, "")
        return SpanRows(document, first.char_start, first.char_end, columns, second)

    def _rows(self, documents: Sequence[Document]) -> tuple[IntArray, IntArray]:
        """Return the rows of `table` of all spans of documents, and how many each document has."""
        asked = pl.Series([str(document.doc_id) for document in documents], dtype=pl.String)
        ids = self.table["doc_id"]
        first, last = (ids.search_sorted(asked, side).to_numpy().astype(np.int64) for side in ("left", "right"))
        return ragged_arange(first, last - first), last - first

    def _bounded(self, documents: Sequence[Document], document: IntArray, found: pl.DataFrame, which: str) -> SpanRows:
        """Return one of the spans of each row, after a check that it lies in its document."""
        start, end = (found[f"{name}{which}"].to_numpy().astype(np.int64) for name in ("start", "end"))
        what = "words" if self.in_words else "characters"
        if self.in_words and any(each.words is None for each in documents):
            raise InputError("has word_start and word_end, and the corpus gives no words", path=self.path)
        n, word_start, word_end = word_bounds([each.words or () for each in documents])
        before = np.cumsum(n) - n
        if not self.in_words:
            n = np.array([len(each.text) for each in documents], np.int64)
        wrong: BoolArray = (start < 0) | (end <= start) | (end > n[document])
        if wrong.any():
            at = int(np.argmax(wrong))
            owner = documents[document[at]]
            raise InputError(
                f"{what} {start[at]} to {end[at]} are not a span of document {owner.doc_id!r}, which has "
                f"{n[document[at]]} {what}",
                path=self.path,
                row=int(found["row"][at]),
            )
        if self.in_words:
            start, end = word_start[before[document] + start], word_end[before[document] + end - 1]
        return SpanRows(document, start.astype(np.int32), end.astype(np.int32))


_ARROW = {pl.String(): "string", pl.Boolean(): "bool", pl.Int64(): "int64", pl.Float64(): "double"}


def _whole(values: pl.Series, path: str) -> pl.Series:
    """Return values as whole numbers."""
    numbers = values.cast(pl.Int64, strict=False)
    wrong = numbers.is_null()
    if values.dtype.is_float():
        wrong |= values != numbers
    if wrong.any():
        at = int(wrong.arg_true()[0])
        raise InputError(f"{values.name} {values[at]!r} is not a whole number", path=path, row=at + 1)
    return numbers


def _simple(values: pl.Series, path: str) -> pl.Series:
    """Return the values of a further column as texts, truth values or numbers."""
    kind: Any = values.dtype
    if kind.is_nested():
        raise InputError(f"column {values.name!r} holds {kind}; keep plain values only", path=path)
    if kind.is_integer():
        kind = pl.Int64()
    elif kind.is_float():
        kind = pl.Float64()
    elif kind not in _KINDS:
        kind = pl.String()
    return values.cast(kind)
