"""Rows that vectors from elsewhere stand for: lines of ids, the rows of a table, or the words of a CoNLL file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from bertfeat.choices import CorpusFormat, Level
from bertfeat.corpus.columns import encoded_types, kind_of, type_of
from bertfeat.corpus.content import RowError, clean
from bertfeat.corpus.formats import WORD_FORMATS, open_file
from bertfeat.corpus.parquet import is_text
from bertfeat.corpus.tabular import check_plain, shown
from bertfeat.errors import InputError
from bertfeat.levels import LEVELS
from bertfeat.records import Column, DocId, InputFile

_DOC_ID, _WORD, _WORD_INDEX = "doc_id", "word", "word_index"
_TRUTH = {"true": True, "false": False}


class Group(NamedTuple):
    """A document: its id, the number of its first row in the file, its rows, its words if known, and its columns."""

    doc_id: DocId
    row: int
    n_rows: int
    words: Sequence[str] | None
    columns: Mapping[str, Sequence[Any]]


class RowFile:
    """A file whose rows are those of the vectors.

    At sentence level each row is a document. At word level, rows with one `doc_id` after the other are its words.

    Args:
        file: The file.
        level: The level of the rows.
        left_out: Columns that are not read.

    Attributes:
        id_type: The Arrow type of its ids, `int64` or `string`.
        columns: Its further columns.
        kept_arrow: See `CorpusSchema`.

    Raises:
        InputError: The file cannot be read, or does not go with the level.
    """

    def __init__(self, file: InputFile, level: Level, left_out: Sequence[str] = ()) -> None:
        if file.format in WORD_FORMATS and level is not Level.WORD:
            raise InputError(f"{file.format} has words, and the vectors are of sentences; pass a table", path=file.path)
        self.file, self._level = file, level
        self._reader = open_file(file)
        self._types = {name: kind for name, kind in self._all_types().items() if name not in left_out}
        self._reader.select([*self._types])
        kind = self._types.get(_DOC_ID, pa.int64())
        if not (pa.types.is_integer(kind) or is_text(kind)):
            raise self._wrong(f"column 'doc_id' is {kind}; write whole numbers or texts")
        self.id_type = "string" if is_text(kind) else "int64"
        # A column with the name of one that bertfeat writes has the type of that one.
        own = {column.name: column.type for column in LEVELS[level].columns if column.name in self._types}
        self._own = own | {_DOC_ID: self.id_type}
        kept = [pa.field(name, kind) for name, kind in self._types.items() if name not in self._own]
        named = [(name, kind) for name, kind in self._own.items() if name != _DOC_ID]
        self.columns = tuple(Column(*pair) for pair in (*named, *((field.name, str(field.type)) for field in kept)))
        self.kept_arrow = encoded_types(kept)

    def _all_types(self) -> Mapping[str, Any]:
        reader = self._reader
        if self.file.format == CorpusFormat.TXT:
            return {_DOC_ID: pa.string()}
        if reader.has_words:
            return dict.fromkeys(reader.annotations or (), pa.string())
        types = self._survey() if reader.types is None else reader.types
        names = [*(types if reader.types is None else reader.columns)]
        if "" in names:
            place = names.index("") + 1
            raise self._wrong(f"column {place} has no name; name it, or leave out the index of a data frame")
        reader.check_names(names)
        if _DOC_ID not in types and self._level is Level.WORD:
            there = ", ".join(types) or "none"
            reason = f"no column 'doc_id', which tells the words of one text from the next; columns are {there}"
            raise self._wrong(reason)
        return types

    def _survey(self) -> Mapping[str, Any]:
        """Return the types of the values of JSON."""
        # One value of each kind of each column.
        found: dict[str, dict[str, Any]] = {}
        for row, values in self._rows():
            for name, value in values.items():
                kinds = found.setdefault(name, {})
                if (kind := kind_of(value)) is not None:
                    kinds.setdefault(kind, value)
                if type_of(kinds) is None:
                    other = next(iter(kinds.values()))
                    reason = f"column {name!r} holds {shown(value)}, rows before hold {shown(other)}; write one type"
                    raise self._wrong(reason, row)
        return {name: type_of(kinds) for name, kinds in found.items()}

    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the number and the values of each row; a bad row is an error."""
        for row, values in self._reader.good_rows():
            try:
                for name, value in values.items() if self._reader.types is None else ():
                    check_plain(name, value)
            except RowError as error:
                raise self._wrong(str(error), row) from None
            yield row, values

    def groups(self) -> Iterator[Group]:
        """Yield the documents, from the first on.

        Raises:
            InputError: A row cannot be read or used.
        """
        if self._reader.has_words:
            for number, (row, values) in enumerate(self._rows()):
                yield Group(number, row, len(values["words"]), values["words"], values["columns"])
            return
        if self._level is Level.WORD:
            yield from (self._group([*found]) for _, found in groupby(self._fitted(), lambda item: item[1][_DOC_ID]))
            return
        for number, (row, values) in enumerate(self._fitted()):
            yield self._group([(row, {_DOC_ID: number, **values})])

    def _fitted(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield rows with the columns and types of the store."""
        is_txt = self.file.format == CorpusFormat.TXT
        for row, given in self._rows():
            values = {_DOC_ID: given["text"]} if is_txt else given
            if is_txt and not given["text"].strip():
                raise self._wrong("the line is empty; write an id", row)
            found = {name: values.get(name) for name in self._types}
            for name, value in found.items():
                if name in self._own:
                    found[name] = self._fit(name, value, row)
                elif isinstance(value, str):
                    found[name] = clean(value)
            if _DOC_ID in found and found[_DOC_ID] is None:
                raise self._wrong("doc_id is null; give each row one", row)
            yield row, found

    def _fit(self, name: str, value: Any, row: int) -> Any:
        try:
            return None if value is None else _as_type(value, self._own[name])
        except (ValueError, KeyError, TypeError, OverflowError):
            reason = f"column {name!r} holds {shown(value)}, which is not {self._own[name]}"
            raise self._wrong(f"{reason}; bertfeat has a column of that name, so rename yours", row) from None

    def _group(self, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Group:
        first, doc_id = rows[0][0], rows[0][1][_DOC_ID]
        columns = {column.name: [values[column.name] for _, values in rows] for column in self.columns}
        if _WORD_INDEX in self._own:
            before = -1
            for (row, _), index in zip(rows, columns[_WORD_INDEX], strict=True):
                if index is None or index <= before:
                    must = f"be above {before}, that of the row before" if before >= 0 else "be a number from 0 on"
                    raise self._wrong(f"word_index {shown(index)} of document {doc_id!r} must {must}", row)
                before = index
        words = columns.get(_WORD)
        return Group(doc_id, first, len(rows), None if words is None or None in words else words, columns)

    def _wrong(self, reason: str, row: int | None = None) -> InputError:
        return InputError(reason, path=self.file.path, row=row)

    def close(self) -> None:
        """Close the file."""
        self._reader.close()


def _as_type(value: Any, kind: str) -> Any:
    """Return a value as one of a column that bertfeat writes; a file of texts has numbers as texts."""
    if kind == "string":
        return clean(value) if isinstance(value, str) else str(value)
    if kind == "bool":
        return value if isinstance(value, bool) else _TRUTH[value]
    number = int(value)
    n_bits = int(kind.removeprefix("int")) - 1
    if (isinstance(value, float) and number != value) or not -(1 << n_bits) <= number < 1 << n_bits:
        raise ValueError(value)
    return number
