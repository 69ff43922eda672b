"""Survey of the columns of a corpus and register of its ids, made while it is scanned."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from bertfeat.config import ExtractConfig
from bertfeat.corpus.content import Content, Reader
from bertfeat.errors import InputError
from bertfeat.records import Column, DocId

# Beyond this, a float64 does not hold every integer.
_EXACT_IN_DOUBLE = 2**53
_WIDE = "int64 (maybe beyond 2**53)"
_PLAIN: tuple[tuple[frozenset[Any], Any], ...] = (
    (frozenset({"string"}), pa.string()),
    (frozenset({"bool"}), pa.bool_()),
    (frozenset({"int64", _WIDE}), pa.int64()),
    (frozenset({"int64", "double"}), pa.float64()),
)
_LIST = "list of "
# Kinds of values that one column may mix, and the Arrow type that holds them. Empty lists go with all lists.
_UNIONS = (
    *_PLAIN,
    *((frozenset({_LIST, *(_LIST + kind for kind in kinds)}), pa.list_(held)) for kinds, held in _PLAIN),
)
# The kind of the values of a type; any other type is a kind of its own.
_KIND_OF_TYPE = {pa.string(): "string", pa.bool_(): "bool", pa.int64(): _WIDE, pa.float64(): "double"}
_KIND_OF_TYPE |= {pa.list_(held): _LIST + kind for held, kind in _KIND_OF_TYPE.items()}


@dataclass(frozen=True, slots=True)
class CorpusSchema:
    """The columns that come from a corpus: the kept ones at the sentence level, annotations at the word level.

    `spans` are the columns of a file of spans, and with `has_span_pairs` its rows are of two.
    `id_type` is `int64` or `string`. `kept_arrow` has the kept columns as an Arrow schema (IPC bytes in base64) if the
    name of a type does not define it (time zones, decimals, lists).
    """

    id_type: str = "int64"
    kept: tuple[Column, ...] = ()
    annotations: tuple[Column, ...] = ()
    has_pairs: bool = False
    spans: tuple[Column, ...] = ()
    has_span_pairs: bool = False
    kept_arrow: str | None = None


class IdRegister:
    """Takes ids, and finds the first one that appears twice.

    For each id it keeps a hash of 128 bits, 16 bytes: among a billion ids, the chance that two share a hash is 1e-21.
    Ids 1 and "1" are the same.
    """

    def __init__(self, ids: Iterable[DocId] = ()) -> None:
        self._content = bytearray()
        for doc_id in ids:
            self.add(doc_id)

    def add(self, doc_id: DocId) -> None:
        """Take an id."""
        self._content += xxhash.xxh3_128_digest(str(doc_id).encode())

    @property
    def _digests(self) -> npt.NDArray[Any]:
        return np.frombuffer(self._content, "S16")

    def find_duplicate(self) -> tuple[int, int] | None:
        """Return the number of the first id that an earlier one equals, after that of the earlier one."""
        # The sort is stable: of equal ids, the earlier one comes first.
        order = np.argsort(self._digests, kind="stable")
        ordered = self._digests[order]
        seconds = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
        if not len(seconds):
            return None
        at = seconds[np.argmin(order[seconds])]
        return int(order[at - 1]), int(order[at])

    def find_known(self, known: IdRegister) -> int | None:
        """Return the number of the first id that is in another register."""
        ordered = np.sort(known._digests)
        start, stop = (np.searchsorted(ordered, self._digests, side) for side in ("left", "right"))
        found = np.flatnonzero(stop > start)
        return int(found[0]) if len(found) else None


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a store holds already, if a corpus is added to it: `ids` are those of its documents, if ids are given."""

    place: str
    n_rows: int
    schema: CorpusSchema
    ids: IdRegister | None = None


class SchemaSurvey:
    """Collects the schema of a corpus, and refuses files and rows that do not agree with it or with the store."""

    def __init__(self, config: ExtractConfig, earlier: Earlier | None = None) -> None:
        self._config = config
        self._id_type: str | None = None
        self._id_remedy = "write all ids as strings"
        self._annotations: tuple[tuple[str, ...], str] | None = None
        # The kinds of values of each kept column, and where each was first; none for a column that is always null.
        self._kinds: dict[str, dict[Any, str]] = {}
        # A file without types of its own, whose rows may lack a column.
        self._untyped: str | None = None
        if earlier is None:
            return
        schema, place = earlier.schema, earlier.place
        self._id_type = schema.id_type if config.id_column else None
        self._id_remedy = f"write {schema.id_type} ids, as in {place} (.csv and .tsv have strings only)"
        if schema.annotations:
            self._annotations = (tuple(column.name for column in schema.annotations), place)
        for name, kind in kept_arrow_types(schema).items():
            self._kinds[name] = {_KIND_OF_TYPE.get(kind, kind): place}

    def open_file(self, reader: Reader) -> None:
        """Take the columns that a file declares."""
        path = reader.file.path
        if reader.annotations is not None:
            names, first = self._annotations or (reader.annotations, path)
            if names != reader.annotations:
                own, before = (", ".join(columns) or "none" for columns in (reader.annotations, names))
                reason = f"word columns: {own}; in {first}: {before}; extract these files into separate stores"
                raise InputError(reason, path=path)
            self._annotations = (names, first)
        types = reader.types or {}
        for name in (*self._config.keep_columns, *reader.own_columns):
            if name in types:
                self._take(name, _KIND_OF_TYPE.get(types[name], types[name]), path)

    def add(self, reader: Reader, content: Content, row: int) -> None:
        """Take the types of a row's values."""
        path = reader.file.path
        if content.doc_id is not None:
            id_type = "int64" if isinstance(content.doc_id, int) else "string"
            if id_type != (self._id_type or id_type):
                reason = f"id {content.doc_id!r} is {id_type}, ids before are {self._id_type}; {self._id_remedy}"
                raise InputError(reason, path=path, row=row)
            self._id_type = id_type
        if reader.types is None:
            self._untyped = path
            for name, value in content.kept.items():
                self._take(name, kind_of(value), path, row)

    def _take(self, name: str, kind: Any, path: str, row: int | None = None) -> None:
        known = self._kinds.setdefault(name, {})
        if kind is None or kind in known:
            return
        if type_of({*known, kind}) is None:
            (other, first), *_ = known.items()
            reason = f"kept column {name!r} is {kind}, in {first} it is {other}; give it one type"
            raise InputError(reason, path=path, row=row)
        known[kind] = path

    def result(self) -> CorpusSchema:
        """Return the schema of the corpus."""
        columns = dict.fromkeys([*self._config.keep_columns, *self._kinds])
        if self._untyped is not None and (missing := [name for name in columns if name not in self._kinds]):
            raise InputError(f"no row has a column {missing[0]!r}; check the names to keep", path=self._untyped)
        fields = [pa.field(name, type_of(self._kinds.get(name, ()))) for name in columns]
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


def encoded_types(fields: Sequence[Any]) -> str | None:
    """Return Arrow fields as text, for `CorpusSchema.kept_arrow`; None if the names of their types define them."""
    with suppress(ValueError):
        if all(pa.type_for_alias(str(field.type)) == field.type for field in fields):
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
    if isinstance(value, list):
        kinds = {kind_of(item) for item in value} - {None}
        of_all = next(iter(kinds), "") if len(kinds) < 2 else _KIND_OF_TYPE[type_of(kinds)]
        return f"{_LIST}{of_all}"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if abs(value) <= _EXACT_IN_DOUBLE else _WIDE
    return "double" if isinstance(value, float) else "string"


def type_of(kinds: Iterable[Any]) -> Any:
    """Return the Arrow type that holds values of some kinds, string if no kind is given; None if no type holds all."""
    kinds = {*kinds}
    if len(kinds) == 1 and isinstance(kind := next(iter(kinds)), pa.DataType):
        return kind
    return next((kind for members, kind in _UNIONS if members.issuperset(kinds)), None)
