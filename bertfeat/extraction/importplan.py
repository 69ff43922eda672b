"""Plan of an import: the documents that vectors from elsewhere stand for, checked, and their cut into shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfeat._version import __version__
from bertfeat.choices import Level
from bertfeat.config import ExtractConfig
from bertfeat.corpus import ScannedRow, cut_shards
from bertfeat.corpus.duplicates import IdRegister
from bertfeat.corpus.vectorfiles import VectorFile, open_vectors
from bertfeat.corpus.vectorrows import Group, RowFile
from bertfeat.errors import ConfigError, InputError
from bertfeat.extraction.plan import row_bytes
from bertfeat.levels import LEVELS
from bertfeat.records import FORMAT_VERSION, Column, InputFile, LevelSchema, ModelInfo, Plan
from bertfeat.store.manifest import IMPORTED
from bertfeat.store.planfile import hash_of_plan

# The columns that every store of a level has, null where nothing is known.
_SHOWN = {Level.WORD: ("word_index", "word", "char_start", "char_end"), Level.SENTENCE: ("text",)}
# The settings of an extraction that an import has too.
_SETTINGS = ("levels", "model", "store_dtype", "vector_encoding", "shard_bytes")


@dataclass(frozen=True, slots=True)
class Sources:
    """The open files of an import: the vectors, and what their rows stand for; None if rows are only numbered."""

    vectors: VectorFile
    rows: RowFile | None

    def close(self) -> None:
        """Close the files."""
        self.vectors.close()
        if self.rows is not None:
            self.rows.close()


def open_sources(config: ExtractConfig, vector_columns: Sequence[str], files: Sequence[InputFile]) -> Sources:
    """Open the files of an import, the vectors and perhaps the ids.

    Raises:
        UserError: A file cannot be read, or a setting does not go with its format.
    """
    (level,) = config.levels
    file, *others = files
    if vector_columns and file.format != "parquet":
        raise ConfigError(f"`vector_columns` does not go with {file.path} ({file.format}); it is for parquet")
    if file.format == "parquet" and others:
        raise ConfigError(f"`ids` does not go with {file.format}, whose other columns come along")
    if level is Level.WORD and file.format != "parquet" and not others:
        raise ConfigError(
            f"{file.path}: does not say where texts end, as `level='word'` must know; pass `ids`, a table with doc_id "
            "and word or a CoNLL file"
        )
    vectors = open_vectors(file, config.store_dtype, vector_columns)
    if others:
        return Sources(vectors, RowFile(others[0], level))
    names = [feature.name for feature in vectors.features]
    has_others = level is Level.WORD or len(names) < len(vectors.columns)
    return Sources(vectors, RowFile(file, level, names) if has_others else None)


def import_fields(config: ExtractConfig, vector_columns: Sequence[str]) -> dict[str, Any]:
    """Return everything that decides the bytes of the parts, as flat JSON values."""
    settings = config.to_dict()
    own = {name: settings[name] for name in _SETTINGS} | {"vector_columns": list(vector_columns)}
    return {IMPORTED: True, "format_version": FORMAT_VERSION, **own}


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
    register = IdRegister()
    documents = _documents(sources, cost, register)
    shards = cut_shards(documents, lambda row: row.n_bytes, config.shard_bytes, keep_groups=False)
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
    return Plan(
        plan_hash=hash_of_plan(fields, files),
        fields=dict(fields),
        inputs=tuple(files),
        model=model,
        schemas={level: schema},
        shards=shards,
        metadata=_metadata(config, files, schema),
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


def _documents(sources: Sources, cost: int, register: IdRegister) -> Iterator[ScannedRow]:
    """Check all vectors and rows, and yield the documents with the places of their vectors.

    `cost` is that of a row in bytes, without its further columns.
    """
    path, n_vectors = sources.vectors.file.path, sources.vectors.check()
    if sources.rows is None:
        for row in range(n_vectors):
            yield ScannedRow(row, 0, path, row, row + 1, None, cost, None, row, None)
        return
    n_rows = 0
    for number, group in enumerate(sources.rows.groups()):
        register.add(group.doc_id)
        n_bytes = group.n_rows * cost + _text_bytes(group)
        yield ScannedRow(number, 0, path, n_rows, n_rows + 1, None, n_bytes, None, group.doc_id, None)
        n_rows += group.n_rows
    if n_rows != n_vectors:
        reason = f"has {n_vectors:,} vectors, and {sources.rows.file.path} has {n_rows:,} rows; one vector per row"
        raise sources.vectors.wrong(reason)


def _text_bytes(group: Group) -> int:
    """Return about the bytes of the texts in a document's columns."""
    return sum(len(value) for values in group.columns.values() for value in values if isinstance(value, str))


def _check_unique(register: IdRegister, sources: Sources) -> None:
    duplicate = register.find_duplicate()
    if duplicate is None or sources.rows is None:
        return
    first, second = (found for number, found in enumerate(sources.rows.groups()) if number in duplicate)
    reason = (
        f"id {second.doc_id!r} appears twice, first at row {first.row}; make ids unique, and keep rows of one together"
    )
    raise InputError(reason, path=sources.rows.file.path, row=second.row)


def _metadata(config: ExtractConfig, files: Sequence[InputFile], schema: LevelSchema) -> dict[str, Any]:
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
        "word_pooling": "",
        "pooling": "",
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
