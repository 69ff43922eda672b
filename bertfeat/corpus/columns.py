"""Survey of the columns of a corpus, made while it is scanned."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Content, Reader
from bertfeat.corpus.duplicates import IdRegister
from bertfeat.errors import InputError
from bertfeat.records import Column

# Beyond this, a float64 does not hold every integer.
_EXACT_IN_DOUBLE = 2**53
_WIDE = "int64 beyond 2**53"
# Kinds of values that one column may mix, and the Arrow type that holds them.
_UNIONS: tuple[tuple[frozenset[str], Any], ...] = (
    (frozenset({"string"}), pa.string()),
    (frozenset({"bool"}), pa.bool_()),
    (frozenset({"int64", _WIDE}), pa.int64()),
    (frozenset({"int64", "double"}), pa.float64()),
)
_KINDS = frozenset().union(*(kinds for kinds, _ in _UNIONS))


@dataclass(frozen=True, slots=True)
class CorpusSchema:
    """The columns that come from a corpus.

    Attributes:
        id_type: The type of `doc_id`: `int64` or `string`.
        kept: The kept columns, for the sentence level, with the names of their Arrow types.
        annotations: The word columns, for the word level.
        has_pairs: Documents may have a second text.
        kept_arrow: The kept columns as an Arrow schema (IPC bytes in base64) if the name of a type does not define it
            (time zones, decimals, lists), else None.
    """

    id_type: str = "int64"
    kept: tuple[Column, ...] = ()
    annotations: tuple[Column, ...] = ()
    has_pairs: bool = False
    kept_arrow: str | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a store holds already, if a corpus is added to it.

    Attributes:
        place: The store, for messages.
        n_rows: Its rows.
        schema: Its columns.
        ids: The ids of its documents, if ids are given.
    """

    place: str
    n_rows: int
    schema: CorpusSchema
    ids: IdRegister | None = None


class SchemaSurvey:
    """Collects a corpus's schema from its files and rows, and refuses files and rows that do not agree.

    Those of a corpus that is added to a store must agree with the store.
    """

    def __init__(self, config: ExtractConfig, earlier: Earlier | None = None) -> None:
        self._config = config
        self._id_type: str | None = None
        self._id_remedy = "write all ids as strings"
        self._annotations: tuple[tuple[str, ...], str] | None = None
        self._declared: dict[str, tuple[Any, str]] = {}
        # The kinds of values of each kept column of JSON that a row has.
        self._met: dict[str, set[str]] = {}
        if earlier is not None:
            self._start_from(earlier.schema, earlier.place)
        self._undeclared: str | None = None

    def _start_from(self, schema: CorpusSchema, place: str) -> None:
        self._id_type = schema.id_type if self._config.id_column else None
        self._id_remedy = f"write {schema.id_type} ids, as in {place} (.csv and .tsv have strings only)"
        if schema.annotations:
            self._annotations = (tuple(column.name for column in schema.annotations), place)
        for name, kind in kept_arrow_types(schema).items():
            self._declared[name] = (kind, place)
            if name in self._config.keep_columns:
                self._met[name] = {str(kind)} & _KINDS

    def open_file(self, reader: Reader) -> None:
        """Take the columns that a file declares.

        Raises:
            InputError: The file's word columns or kept types are not those of the files before it.
        """
        path = reader.file.path
        if reader.annotations is not None:
            names, first = self._annotations or (reader.annotations, path)
            if names != reader.annotations:
                own, before = (", ".join(columns) or "none" for columns in (reader.annotations, names))
                reason = f"word columns: {own}; in {first}: {before}; extract these files into separate stores"
                raise InputError(reason, path=path)
            self._annotations = (names, first)
        types = reader.types or {}
        for name, kind in ((n, types[n]) for n in (*self._config.keep_columns, *reader.own_columns) if n in types):
            declared, first = self._declared.setdefault(name, (kind, path))
            if declared != kind:
                raise InputError(
                    f"kept column {name!r} is {kind}, in {first} it is {declared}; give it one type", path=path
                )

    def add(self, reader: Reader, content: Content, row: int) -> None:
        """Take the types of a row's values.

        Raises:
            InputError: The type of its id or of a kept value does not fit the rows before.
        """
        path = reader.file.path
        if content.doc_id is not None:
            id_type = "int64" if isinstance(content.doc_id, int) else "string"
            if id_type != (self._id_type or id_type):
                raise InputError(
                    f"id {content.doc_id!r} is {id_type}, ids before are {self._id_type}; {self._id_remedy}",
                    path=path,
                    row=row,
                )
            self._id_type = id_type
        if reader.types is None:
            self._undeclared = path
            for name, value in content.kept.items():
                self._meet(name, value, path, row)

    def _meet(self, name: str, value: object, path: str, row: int) -> None:
        kind = kind_of(value)
        met = self._met.setdefault(name, set())
        if kind is None or kind in met:
            return
        if type_of(met | {kind}) is None:
            raise InputError(
                f"kept column {name!r} holds {value!r} ({kind}), values before are {' or '.join(sorted(met))}; "
                "write one type of value",
                path=path,
                row=row,
            )
        met.add(kind)

    def result(self) -> CorpusSchema:
        """Return the schema of the corpus.

        Raises:
            InputError: No row has a kept column, or the type that files declare differs from that of rows elsewhere.
        """
        fields = [
            pa.field(name, self._kept_type(name))
            for name in dict.fromkeys([*self._config.keep_columns, *self._declared])
        ]
        names, _ = self._annotations or ((), "")
        if self._config.is_split_into_words and self._config.label_column and not names:
            names = ("label",)
        return CorpusSchema(
            id_type=self._id_type or ("string" if self._config.id_column else "int64"),
            kept=tuple(Column(field.name, str(field.type)) for field in fields),
            annotations=tuple(Column(name, "string") for name in names),
            has_pairs=self._config.text_pairs or self._config.text_pair_column is not None,
            kept_arrow=encoded_types(fields),
        )

    def _kept_type(self, name: str) -> Any:
        declared, first = self._declared.get(name, (None, ""))
        if self._undeclared is None:
            return declared or pa.string()
        if name not in self._met and declared is None:
            raise InputError(f"no row has a column {name!r}; check `keep_columns`", path=self._undeclared)
        # A column without any value takes the type that other files declare.
        met = self._met.get(name, set())
        found = type_of(met) if met or declared is None else declared
        if declared is not None and found != declared:
            raise InputError(
                f"kept column {name!r} is {found}, in {first} it is {declared}; give it one type", path=self._undeclared
            )
        return found


def encoded_types(fields: Sequence[Any]) -> str | None:
    """Return Arrow fields as text, for `CorpusSchema.kept_arrow`; None if the names of their types define them."""
    if all(_is_named(field.type) for field in fields):
        return None
    return base64.b64encode(pa.schema(fields).serialize().to_pybytes()).decode("ascii")


def kept_arrow_types(schema: CorpusSchema) -> dict[str, Any]:
    """Return the Arrow types of the kept columns, by name."""
    if schema.kept_arrow is None:
        return {column.name: pa.type_for_alias(column.type) for column in schema.kept}
    content = pa.py_buffer(base64.b64decode(schema.kept_arrow))
    return {field.name: field.type for field in pa.ipc.read_schema(content)}


def kind_of(value: object) -> str | None:
    """Return the name of the type of a JSON value; None if it is null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if abs(value) <= _EXACT_IN_DOUBLE else _WIDE
    return "double" if isinstance(value, float) else "string"


def type_of(kinds: Iterable[str]) -> Any:
    """Return the Arrow type that holds values of some kinds, string if no kind is given; None if no type holds all."""
    return next((kind for members, kind in _UNIONS if members.issuperset(kinds)), None)


def _is_named(kind: Any) -> bool:
    """Return whether the name of a type defines it."""
    try:
        return bool(pa.type_for_alias(str(kind)) == kind)
    except ValueError:
        return False
