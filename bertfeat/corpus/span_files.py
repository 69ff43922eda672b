"""Files of spans: a table with the document and the bounds of each span, and further columns that are kept."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow as pa

from bertfeat.choices import Level
from bertfeat.corpus.corpus import endings_of, local_file
from bertfeat.corpus.formats import readers_by_ending
from bertfeat.corpus.reader import ScannedRow
from bertfeat.corpus.tables import read_table
from bertfeat.durable.files import write_errors
from bertfeat.errors import InputError, no_column
from bertfeat.levels import LEVELS
from bertfeat.ragged import ragged_arange, run_of, word_bounds
from bertfeat.records import BoolArray, Column, Document, IntArray, SpanRows

_BOUNDS = (("char_start", "char_end"), ("word_start", "word_end"))
# The column with the rows in the file; no further column may have this name.
_ROW = "span_index"
_ROWS_AT_ONCE = 8192
# The ending of shared tables; the store removes such files if a run was killed.
_COPY = ".spans.tmp"


def is_span_file(spans: str | None) -> bool:
    """Return whether `spans` names a file and not a rule: there is such a file, or its ending is one of tables."""
    if spans is None or spans.startswith("words:"):
        return False
    ending, _ = endings_of(spans)
    reader = readers_by_ending(ending).get(ending)
    # pathlib raises an error where a pattern is longer than a name may be.
    return os.path.isfile(spans) or (reader is not None and reader.has_columns)  # noqa: PTH113


@functools.lru_cache(maxsize=1)
def _opened(path: str, _: tuple[int, int] | None) -> SpanFile:
    return SpanFile.read(path)


def open_spans(path: str) -> SpanFile:
    """Return a file of spans; it is read once in a process, unless it changes."""
    status = os.stat(path) if os.path.exists(path) else None  # noqa: PTH110, PTH116
    return _opened(path, status and (status.st_mtime_ns, status.st_size))


@contextmanager
def shared_spans(path: str, folder: Path | None) -> Iterator[str]:
    """Move the table of a file from memory to a temporary file, which processes map; yield its path, to open alike."""
    prefix = f"{open_spans(path).digest}-"
    with tempfile.NamedTemporaryFile(dir=folder, prefix=prefix, suffix=_COPY) as copy:
        with write_errors(Path(copy.name)):
            open_spans(path).table.write_ipc(copy)
            copy.flush()
        _opened.cache_clear()
        yield copy.name


class SpanFile:
    """The spans of a file: of each document, in the order of the file.

    `table` is sorted by `doc_id`, and has the row in the file, from 1 on, the `bounds`, with `pairs` the same with
    `_2`, and the further `columns`. Bounds count characters, or given words.
    """

    def __init__(self, path: str, digest: str, table: pl.DataFrame) -> None:
        self.path, self.digest, self.table = path, digest, table
        self.bounds = _bounds_of(table)
        self.pairs = f"{self.bounds[0]}_2" in table.columns
        own = {"doc_id", _ROW, *self.bounds, *(f"{name}_2" for name in self.bounds)}
        self.columns = tuple(Column(name, _ARROW[kind]) for name, kind in table.schema.items() if name not in own)

    @classmethod
    def read(cls, path: str) -> SpanFile:
        """Read a file, and check its columns and values; or map a shared table."""
        if not path.endswith(_COPY):
            return cls(path, local_file(path).digest, _table_of(path))
        # polars would read it into memory.
        table = cast("pl.DataFrame", pl.from_arrow(pa.ipc.open_file(pa.memory_map(path)).read_all()))
        return cls(path, Path(path).name.partition("-")[0], table)

    def counted(self, rows: Iterable[ScannedRow]) -> Iterator[ScannedRow]:
        """Yield the rows of a corpus with their numbers of spans."""
        rest = iter(rows)
        while batch := [*islice(rest, _ROWS_AT_ONCE)]:
            yield from (row._replace(n_spans=n) for row, n in zip(batch, self._rows(batch)[1].tolist(), strict=True))

    def check(self, parts: Iterable[Sequence[Document]], *, is_all: bool) -> None:
        """Check that each span lies in its document; and if documents in all parts are all, that no span is of another.

        Raises:
            InputError: A span is wrong; the message names the row.
        """
        seen = np.zeros(len(self.table), np.bool_)
        for documents in parts:
            rows, n = self._rows(documents)
            self._bounded(documents, run_of(n), self.table[rows])
            seen[rows] = True
        if is_all and not seen.all():
            row, doc_id = self.table.select(_ROW, "doc_id").filter(~pl.Series(seen)).sort(_ROW).row(0)
            reason = f"document {doc_id!r} is not in the corpus; check the ids, or leave the span out"
            raise InputError(reason, path=self.path, row=row)

    def of(self, documents: Sequence[Document]) -> SpanRows:
        """Return the spans of documents."""
        rows, n = self._rows(documents)
        found, document = self.table[rows], run_of(n)
        columns = {column.name: found[column.name].to_list() for column in self.columns}
        first, *second = self._bounded(documents, document, found)
        return SpanRows(document, first.char_start, first.char_end, columns, *second)

    def _rows(self, documents: Sequence[Document | ScannedRow]) -> tuple[IntArray, IntArray]:
        """Return the rows of `table` of all spans of documents, and how many each document has."""
        asked = pl.Series([str(document.doc_id) for document in documents], dtype=pl.String)
        ids = self.table["doc_id"]
        first, last = (ids.search_sorted(asked, side).to_numpy().astype(np.int64) for side in ("left", "right"))
        return ragged_arange(first, last - first), last - first

    def _bounded(self, documents: Sequence[Document], document: IntArray, found: pl.DataFrame) -> list[SpanRows]:
        """Return the first span of each row, and the second if there is one, after a check that documents have them."""
        in_words = self.bounds[0] == "word_start"
        what = "words" if in_words else "characters"
        if in_words and any(each.words is None for each in documents):
            raise InputError("has word_start and word_end, and the corpus gives no words", path=self.path)
        n, word_start, word_end = word_bounds([each.words or () for each in documents])
        before = np.cumsum(n) - n
        if not in_words:
            n = np.array([len(each.text) for each in documents], np.int64)
        spans = []
        for which in ("", "_2") if self.pairs else ("",):
            start, end = (found[f"{name}{which}"].to_numpy() for name in self.bounds)
            wrong: BoolArray = (start < 0) | (end <= start) | (end > n[document])
            if wrong.any():
                at = int(np.argmax(wrong))
                whole = f"document {documents[document[at]].doc_id!r}, which has {n[document[at]]} {what}"
                reason = f"{what} {start[at]} to {end[at]} are not a span of {whole}"
                raise InputError(reason, path=self.path, row=int(found[_ROW][at]))
            if in_words:
                start, end = word_start[before[document] + start], word_end[before[document] + end - 1]
            spans.append(SpanRows(document, start.astype(np.int32), end.astype(np.int32)))
        return spans


def _bounds_of(table: pl.DataFrame) -> tuple[str, str]:
    return next((pair for pair in _BOUNDS if pair[0] in table.columns), _BOUNDS[0])


def _table_of(path: str) -> pl.DataFrame:
    frame = read_table(path)
    bounds = _bounds_of(frame)
    names = ["doc_id", *bounds, *(f"{name}_2" for name in bounds if f"{bounds[0]}_2" in frame.columns)]
    for name in names:
        if name not in frame.columns:
            raise InputError(f"{no_column(name, frame.columns)}; spans have doc_id, char_start and char_end", path=path)
    kept = [name for name in frame.columns if name not in names]
    if own := {column.name for column in LEVELS[Level.SPAN].columns}.intersection(kept):
        raise InputError(f"column {min(own)!r} has the name of a column that bertfeat writes; rename it", path=path)
    missing = frame["doc_id"].is_null()
    if missing.any():
        raise InputError("has no doc_id", path=path, row=int(missing.arg_true()[0]) + 1)
    whole = [_whole(frame[name], path) for name in names[1:]]
    table = pl.DataFrame([frame["doc_id"].cast(pl.String), *whole, *(_simple(frame[name], path) for name in kept)])
    return table.with_row_index(_ROW, 1).sort("doc_id", maintain_order=True)


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
    elif kind not in _ARROW:
        kind = pl.String()
    try:
        return values.cast(kind)
    except pl.exceptions.PolarsError as error:
        reason = f"column {values.name!r} of {values.dtype} cannot be stored as {kind} ({error}); write it as text"
        raise InputError(" ".join(reason.split()), path=path) from None
