"""Rows of a table that vectors from elsewhere stand for, with their ids, words and further columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa

from bertfeat.choices import Level
from bertfeat.corpus.columns import encoded_types
from bertfeat.corpus.rowsources import Group, RowSource, SourceRows
from bertfeat.corpus.rowtables import Batch, RowCursor, RowTable
from bertfeat.corpus.tabular import shown
from bertfeat.errors import InputError
from bertfeat.levels import LEVELS
from bertfeat.records import Column, DocId, FileSlice

_DOC_ID, _WORD, _WORD_INDEX = "doc_id", "word", "word_index"


class _Row(NamedTuple):
    """A row: the number of its document and its own, both from 0 on, its id, and its number in the file.

    `n_bytes` are those of its columns, a mean of the rows near it.
    """

    group: int
    place: int
    doc_id: DocId
    number: int
    n_bytes: int
    word_index: int | None
    word: str | None


class TableRows(RowSource):
    """The rows of a table; at word level, rows with one `doc_id` after the other are the words of a document."""

    def __init__(self, table: RowTable, level: Level, left_out: Sequence[str] = ()) -> None:
        super().__init__(table.file)
        self._level, self._table = level, table
        self._types = {name: kind for name, kind in table.types.items() if name not in left_out}
        if _DOC_ID not in self._types and level is Level.WORD:
            there = ", ".join(self._types) or "none"
            raise self._wrong(
                f"no column 'doc_id', which tells the words of one text from the next; columns are {there}"
            )
        kind = self._types.get(_DOC_ID, pa.int64())
        if not (pa.types.is_integer(kind) or _is_text(kind)):
            raise self._wrong(f"column 'doc_id' is {kind}; write whole numbers or texts")
        self.id_type = "string" if _is_text(kind) else "int64"
        own = {column.name: column.type for column in LEVELS[level].columns if column.name in self._types}
        self._own = own | {_DOC_ID: self.id_type}
        kept = [pa.field(name, kind) for name, kind in self._types.items() if name not in self._own]
        named = [(name, kind) for name, kind in self._own.items() if name != _DOC_ID]
        self.columns = tuple(Column(*pair) for pair in (*named, *((field.name, str(field.type)) for field in kept)))
        self.kept_arrow = encoded_types(kept)
        # Rows are counted by their first column where all columns are left out.
        self._names = list(self._types) or list(table.types)[:1]
        self._cursor = RowCursor(table, self._names)

    def groups(self) -> Iterator[Group]:
        """Yield the documents."""
        for _, found in groupby(self._rows(), key=attrgetter("group")):
            rows = [*found]
            words = tuple(row.word for row in rows if row.word is not None)
            known = words if len(words) == len(rows) else None
            yield Group(
                rows[0].doc_id,
                len(rows),
                known,
                len(rows),
                rows[0].place,
                rows[0].number,
                None,
                sum(row.n_bytes for row in rows),
            )

    def _rows(self) -> Iterator[_Row]:
        """Yield all rows; those of one document have the same number of a group."""
        last: _Row | None = None
        for ids, numbers, columns in self._batches(None):
            n_bytes = sum(column.nbytes for column in columns.values()) // max(len(ids), 1)
            indices, words = (
                columns[name].to_pylist() if name in self._own else [None] * len(ids) for name in (_WORD_INDEX, _WORD)
            )
            for doc_id, number, index, word in zip(ids, numbers, indices, words, strict=True):
                is_new = last is None or last.doc_id != doc_id or self._level is Level.SENTENCE
                group, place = (last.group + is_new, last.place + 1) if last is not None else (0, 0)
                if _WORD_INDEX in self._own:
                    before = -1 if is_new or last is None or last.word_index is None else last.word_index
                    self._check_index(index, before, doc_id, number)
                last = _Row(group, place, doc_id, number, n_bytes, index, word)
                yield last

    def _check_index(self, index: int | None, before: int, doc_id: DocId, number: int) -> None:
        if index is None or index <= before:
            reason = f"word_index {shown(index)} of document {doc_id!r} must be above {before}, that of the row before"
            if before < 0:
                reason = f"word_index {shown(index)} of document {doc_id!r} must be a number from 0 on"
            raise self._wrong(reason, number)

    def read(self, piece: FileSlice) -> SourceRows:
        """Return the documents of a piece of the file."""
        doc_ids: list[DocId] = []
        parts: dict[str, list[Any]] = {column.name: [] for column in self.columns}
        for ids, _, columns in self._batches(piece):
            doc_ids += ids
            for name, values in parts.items():
                values.append(columns[name])
        joined = {name: pa.chunked_array(values).combine_chunks() for name, values in parts.items()}
        if self._level is Level.SENTENCE:
            return SourceRows(doc_ids, [1] * len(doc_ids), [None] * len(doc_ids), joined)
        runs = [(doc_id, len([*run])) for doc_id, run in groupby(doc_ids)]
        flat = iter(joined[_WORD].to_pylist() if _WORD in joined else [None] * len(doc_ids))
        words = [tuple(islice(flat, n_rows)) for _, n_rows in runs]
        known = [None if None in found else found for found in words]
        return SourceRows([doc_id for doc_id, _ in runs], [n_rows for _, n_rows in runs], known, joined)

    def _batches(self, piece: FileSlice | None) -> Iterator[tuple[list[DocId], Sequence[int], Mapping[str, Any]]]:
        """Yield ids, row numbers and columns of the stored types, of some rows or of all."""
        own = self._own
        batches = self._table.batches(self._names) if piece is None else self._cursor.take(piece.offset, piece.n_rows)
        place = 0 if piece is None else piece.offset
        for batch in batches:
            n_rows = len(batch.rows)
            columns = {n: self._cast(n, batch, own[n]) if n in own else batch.columns[n] for n in self._types}
            found = columns.pop(_DOC_ID, None)
            ids: list[DocId] = list(range(place, place + n_rows)) if found is None else found.to_pylist()
            if None in ids:
                raise self._wrong("doc_id is null; give each row one", batch.rows[ids.index(None)])  # type: ignore[arg-type]
            place += n_rows
            yield ids, batch.rows, columns

    def _cast(self, name: str, batch: Batch, kind: str) -> Any:
        values, wanted = batch.columns[name], pa.type_for_alias(kind)
        try:
            return values.cast(wanted)
        except pa.ArrowException:
            pass
        row, value = next(pair for pair in zip(batch.rows, values, strict=True) if not _fits(pair[1], wanted))
        reason = (
            f"column {name!r} holds {shown(value.as_py())}, which is not {kind}; bertfeat has a column of that name"
        )
        raise self._wrong(f"{reason}, so rename yours", row)

    def _wrong(self, reason: str, row: int | None = None) -> InputError:
        return InputError(reason, path=self.file.path, row=row)

    def close(self) -> None:
        """Close the file."""
        self._cursor.close()


def _fits(value: Any, kind: Any) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowException:
        return False
    return True


def _is_text(kind: Any) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
