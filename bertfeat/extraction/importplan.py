"""Plan of an import: the documents that vectors from elsewhere stand for, checked, and their cut into shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertfeat._version import __version__
from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus.duplicates import IdRegister
from bertfeat.corpus.rowsources import Group, RowSource
from bertfeat.corpus.vectorfiles import Unit, VectorReader
from bertfeat.corpus.vectorformats import VECTOR_READER_OF, row_source
from bertfeat.errors import ConfigError, InputError
from bertfeat.extraction.plan import row_bytes
from bertfeat.levels import LEVELS
from bertfeat.records import Column, FileSlice, InputFile, LevelSchema, ModelInfo, Plan, ShardSpec
from bertfeat.store.codec import hash_fields
from bertfeat.store.layout import FORMAT_VERSION
from bertfeat.store.planstates import IMPORTED, input_fields

# The columns that every store of a level has, null where nothing is known.
_SHOWN = {Level.WORD: ("word_index", "word", "char_start", "char_end"), Level.SENTENCE: ("text",)}
_VECTORS, _ROWS = 0, 1
# The settings of an extraction that an import has too.
_SETTINGS = ("levels", "model", "store_dtype", "vector_encoding", "shard_bytes")


@dataclass(frozen=True, slots=True)
class Sources:
    """The open files of an import: the vectors, and what their rows stand for; None if rows are only numbered."""

    vectors: VectorReader
    rows: RowSource | None

    def close(self) -> None:
        """Close the files."""
        self.vectors.close()
        if self.rows is not None:
            self.rows.close()


class _Planned(NamedTuple):
    """A document: its rows, and where its vectors are, and what the other source says of it."""

    n_rows: int
    vectors: FileSlice
    group: Group | None


def open_sources(config: ExtractConfig, vector_columns: Sequence[str], files: Sequence[InputFile]) -> Sources:
    """Open the files of an import, the vectors and perhaps the ids.

    Raises:
        UserError: A file cannot be read, or a setting does not go with its format.
    """
    (level,) = config.levels
    reader = VECTOR_READER_OF[files[_VECTORS].format]
    if vector_columns and not reader.has_columns:
        raise ConfigError(
            f"`vector_columns` does not go with {files[_VECTORS].path} ({reader.format}); it is for parquet"
        )
    has_ids, per_row = len(files) > 1, level is Level.WORD and not reader.holds_documents
    if reader.has_columns and has_ids:
        raise ConfigError(f"`ids` does not go with {reader.format}, whose other columns come along")
    if per_row and not has_ids and not reader.has_columns:
        raise ConfigError(
            f"{files[_VECTORS].path}: does not say where texts end, as `level='word'` must know; pass `ids`, a table "
            "with doc_id and word or a CoNLL file"
        )
    vectors = reader(files[_VECTORS], config, vector_columns)
    rows = row_source(files[_ROWS], level, per_row=per_row) if has_ids else vectors.own_rows
    return Sources(vectors, rows)


def import_fields(config: ExtractConfig, vector_columns: Sequence[str], files: Sequence[InputFile]) -> dict[str, Any]:
    """Return everything that decides the bytes of the parts, as flat JSON values."""
    settings = config.to_dict()
    own = {name: settings[name] for name in _SETTINGS} | {"vector_columns": list(vector_columns)}
    return {IMPORTED: True, "format_version": FORMAT_VERSION, **own, **input_fields(files)}


def make_import_plan(
    config: ExtractConfig, fields: Mapping[str, Any], files: Sequence[InputFile], sources: Sources
) -> Plan:
    """Check all rows and vectors, and cut the documents into shards.

    Raises:
        InputError: A row or a vector cannot be used, an id occurs twice, or rows and vectors do not fit together.
    """
    (level,) = config.levels
    schema = _schema(level, sources)
    cost = row_bytes(level, schema.features, config.store_dtype)
    with IdRegister() as register:
        shards = tuple(_cut(_documents(level, sources, register), cost, config.shard_bytes))
        _check_unique(register, sources)
    model = ModelInfo(
        name=config.model,
        revision=None,
        family=IMPORTED,
        weights_sha256="",
        tokenizer_sha256="",
        n_layers=_n_layers(schema),
        hidden_size=schema.features[0].dim,
        max_length=0,
    )
    plan_hash = hash_fields(fields)
    return Plan(
        plan_hash=plan_hash,
        fields=dict(fields),
        inputs=tuple(files),
        model=model,
        schemas={level: schema},
        shards=shards,
        metadata=_metadata(config, files, schema, sources.vectors.pooling) | {"plan_hash": plan_hash},
        kept_schema=sources.rows.kept_arrow if sources.rows else None,
    )


def _schema(level: Level, sources: Sources) -> LevelSchema:
    entry = {column.name: column for column in LEVELS[level].columns}
    given = sources.rows.columns if sources.rows else ()
    own = [Column(name, entry[name].type, nullable=name not in LEVELS[level].keys) for name in _SHOWN[level]]
    doc_id = Column("doc_id", sources.rows.id_type if sources.rows else "int64", nullable=False)
    columns = (doc_id, *own, *(column for column in given if column.name not in _SHOWN[level]))
    names = [column.name for column in columns]
    for feature in sources.vectors.features:
        if feature.name in names:
            raise ConfigError(f"column {feature.name!r} has the name of a column of vectors; rename it")
    return LevelSchema(level, columns, sources.vectors.features)


def _documents(level: Level, sources: Sources, register: IdRegister) -> Iterator[_Planned]:
    """Yield the documents of the file, whose vectors and rows are checked."""
    groups = None if sources.rows is None else sources.rows.groups()
    found = (
        _of_documents(level, sources, groups) if sources.vectors.holds_documents else _of_rows(level, sources, groups)
    )
    for number, planned in enumerate(found):
        if planned.group is not None:
            register.add(number, planned.group.doc_id)
        yield planned


def _of_rows(level: Level, sources: Sources, groups: Iterator[Group] | None) -> Iterator[_Planned]:
    """Yield the documents of a file of rows, which the other source groups."""
    n_vectors = sum(unit.n_rows for unit in sources.vectors.scan())
    if groups is None:
        for place in range(n_vectors):
            yield _Planned(1, FileSlice(_VECTORS, place, place + 1, 1), None)
        return
    n_rows = 0
    for group in groups:
        size = 1 if level is Level.SENTENCE else group.n_rows or 0
        if n_rows + size <= n_vectors:
            yield _Planned(size, FileSlice(_VECTORS, n_rows, n_rows + 1, size), group)
        n_rows += size
    if n_rows != n_vectors:
        assert sources.rows is not None
        reason = f"has {n_vectors:,} vectors, and {sources.rows.file.path} has {n_rows:,} rows; one vector per row"
        raise sources.vectors.wrong(reason)


def _of_documents(level: Level, sources: Sources, groups: Iterator[Group] | None) -> Iterator[_Planned]:
    """Yield the documents of a file that says where they end, compared with those of the other source."""
    number = -1
    for number, unit in enumerate(sources.vectors.scan()):
        group = None if groups is None else next(groups, None)
        if group is None and groups is not None:
            raise _uneven(sources, f"it has {number:,}, the vectors have more")
        n_rows = 1 if level is Level.SENTENCE else _n_words(sources.vectors, unit, group, number)
        place = FileSlice(_VECTORS, unit.offset, unit.row, 1)
        yield _Planned(n_rows, place, group)
    if groups is not None and next(groups, None) is not None:
        raise _uneven(sources, f"the vectors have {number + 1:,}, it has more")


def _n_words(vectors: VectorReader, unit: Unit, group: Group | None, number: int) -> int:
    given = None if group is None else group.words
    words = vectors.words_of(unit, given, number)
    n_rows = unit.n_rows if words is None else len(words)
    if group is not None and group.n_rows not in (None, n_rows):
        raise vectors.wrong(
            f"sentence {number} (doc_id {group.doc_id!r}) has {group.n_rows:,} words, the vectors have {n_rows:,}"
        )
    return n_rows


def _uneven(sources: Sources, reason: str) -> InputError:
    assert sources.rows is not None
    return sources.vectors.wrong(f"does not have the sentences of {sources.rows.file.path}: {reason}")


def _slice(group: Group) -> FileSlice:
    return FileSlice(_ROWS, group.offset, group.row, group.n_units, group.state)


def _cut(documents: Iterator[_Planned], cost: int, limit: int) -> Iterator[ShardSpec]:
    """Cut documents into shards, each filled until the next document would cost too much."""
    first = number = n_documents = total = 0
    slices: list[FileSlice] = []
    for document in documents:
        mine = [document.vectors, *([] if document.group is None else [_slice(document.group)])]
        n_bytes = document.n_rows * cost + (document.group.n_bytes if document.group else 0)
        if n_documents and total + n_bytes > limit:
            yield ShardSpec(number, first, n_documents, tuple(slices))
            first, number, n_documents, total, slices = first + n_documents, number + 1, 0, 0, []
        slices = [_longer(a, b) for a, b in zip(slices, mine, strict=True)] if slices else mine
        n_documents += 1
        total += n_bytes
    if n_documents:
        yield ShardSpec(number, first, n_documents, tuple(slices))


def _longer(piece: FileSlice, more: FileSlice) -> FileSlice:
    return FileSlice(piece.file, piece.offset, piece.row, piece.n_rows + more.n_rows, piece.state)


def _check_unique(register: IdRegister, sources: Sources) -> None:
    duplicate = register.find_duplicate()
    if duplicate is None or sources.rows is None:
        return
    first, second = (
        {number: group for number, group in enumerate(sources.rows.groups()) if number in duplicate}
    ).values()
    reason = (
        f"id {second.doc_id!r} appears twice, first at row {first.row}; make ids unique, and keep rows of one together"
    )
    raise InputError(reason, path=sources.rows.file.path, row=second.row)


def _metadata(
    config: ExtractConfig, files: Sequence[InputFile], schema: LevelSchema, pooling: Mapping[Level, str]
) -> dict[str, Any]:
    """Return the store's description of itself; what an extraction decides is empty."""
    return {
        "format_version": FORMAT_VERSION,
        "model": config.model,
        "revision": None,
        "family": IMPORTED,
        "weights_sha256": "",
        "tokenizer_sha256": "",
        "n_layers": _n_layers(schema),
        "hidden_size": schema.features[0].dim,
        "layers": sorted({layer for feature in schema.features for layer in feature.layers}),
        "combine": ["none"],
        "word_pooling": pooling.get(Level.WORD, "") if schema.level is Level.WORD else "",
        "pooling": pooling.get(Level.SENTENCE, "") if schema.level is Level.SENTENCE else "",
        "include_special_tokens": False,
        "store_dtype": str(config.store_dtype),
        "vector_encoding": str(config.vector_encoding),
        "compute_dtype": "",
        "device_kind": "",
        "attention": "",
        "max_length": 0,
        "stride": 0,
        "on_overlong": "",
        "document_context": False,
        "is_split_into_words": schema.level is Level.WORD,
        "versions": {"bertfeat": __version__},
        IMPORTED: [_described(file) for file in files],
    }


def _n_layers(schema: LevelSchema) -> int:
    """Return the highest number of a layer."""
    return max(layer for feature in schema.features for layer in feature.layers)


def _described(file: InputFile) -> dict[str, str]:
    with Path(file.path).open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"file": Path(file.path).name, "format": file.format, "sha256": sha256}
