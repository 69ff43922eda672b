"""`import_vectors`: vectors from elsewhere become a store like any other."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from bertfeat._version import __version__
from bertfeat.choices import Level
from bertfeat.config import ExtractConfig, parse_size
from bertfeat.corpus import ScannedRow, cut_shards
from bertfeat.corpus.columns import IdRegister
from bertfeat.corpus.inputs import local_file
from bertfeat.corpus.vectorfiles import VectorFile, open_vectors, vector_file
from bertfeat.corpus.vectorrows import Group, RowFile
from bertfeat.errors import ConfigError, InputError
from bertfeat.extraction.plan import describe, row_bytes, stored_plan
from bertfeat.levels import LEVELS
from bertfeat.progress import Progress, reporting
from bertfeat.ragged import ragged_arange, word_bounds
from bertfeat.records import (
    FORMAT_VERSION,
    Column,
    InputFile,
    IntArray,
    LevelSchema,
    LevelTable,
    ModelInfo,
    Plan,
    ShardResult,
    ShardSpec,
)
from bertfeat.storage import as_path
from bertfeat.store.manifest import IMPORTED
from bertfeat.store.planfile import hash_of_plan
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import open_for_writing

# The columns that every store of a level has, null where nothing is known.
_SHOWN = {Level.WORD: ("word_index", "word", "char_start", "char_end"), Level.SENTENCE: ("text",)}
# The settings of an extraction that an import has too.
_SETTINGS = ("levels", "model", "store_dtype", "vector_encoding", "shard_bytes")


def import_vectors(
    path: str | Path,
    output: str | Path,
    *,
    level: str,
    ids: str | Path | None = None,
    vector_columns: str | Iterable[str] = (),
    model: str = IMPORTED,
    store_dtype: str = "float16",
    vector_encoding: str = "array",
    shard_bytes: int | str = 256_000_000,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
) -> Store:
    r"""Make a store of vectors that another program made.

    All values and rows are checked before anything is written. The same call resumes an interrupted import, and does
    nothing on a finished store. A row that is NaN in all its values has no vector.

    Args:
        path: The vectors: .npy or .parquet. Recipes make a .parquet of ELMo's .hdf5 and of the .jsonl of google's
            extract_features.py.
        output: The store's folder, or its URL in an object store.
        level: What a vector stands for: `word` or `sentence`.
        ids: What the rows stand for: a .txt with an id per line; a .csv, .tsv, .jsonl, .json or .parquet whose columns
            come along (`doc_id`, `word_index`, `word`, `text`, `label`, ...); or a .conll or .conllu, at word level.
        vector_columns: The columns of vectors of a .parquet, by default all lists of floats.
        model: The name of what made the vectors; stores and probes of other names do not go together.
        store_dtype: See `ExtractConfig`, as for `vector_encoding`.
        vector_encoding: How vectors are written.
        shard_bytes: The size of a shard, such as `"256MB"`.
        overwrite: Replace a store that is already there.
        progress: See `extract`.

    Returns:
        The finished store.

    Raises:
        UserError: A file, a row, a value or a setting cannot be used; nothing was written.
        RunError: The system refused a write; the same call resumes.

    Examples:
        >>> np.save(tmp / "vectors.npy", np.eye(3, 4, dtype="float32"))
        >>> _ = (tmp / "ids.csv").write_text("doc_id,label\na,x\nb,y\nc,x\n")
        >>> store = import_vectors(tmp / "vectors.npy", tmp / "imported", level="sentence", ids=tmp / "ids.csv")
        >>> store.numpy("sentence", "embedding").shape, store.polars("sentence", ["doc_id", "label"]).row(1)
        ((3, 4), ('b', 'y'))
    """
    if level not in (Level.WORD, Level.SENTENCE):
        raise ConfigError(f"`level` {level!r} must be one of {Level.WORD}, {Level.SENTENCE}")
    if not str(model).strip():
        raise ConfigError(f"`model` {model!r} must be a name of what made the vectors")
    config = ExtractConfig.from_dict(
        {
            "levels": (level,),
            "model": model,
            "store_dtype": store_dtype,
            "vector_encoding": vector_encoding,
            "shard_bytes": parse_size(shard_bytes, "shard_bytes"),
        }
    )
    columns = [vector_columns] if isinstance(vector_columns, str) else [*dict.fromkeys(vector_columns)]
    before = {Path(name): _stamp(Path(name)) for name in (path, ids) if name is not None}
    files = [vector_file(str(path))]
    if ids is not None:
        files.append(local_file(str(ids)))
    target = as_path(output)
    with reporting(progress) as reports:
        fields = _fields(config, columns)
        plan = None if overwrite else stored_plan(target, fields, files)
        if plan is None:
            reports.stage("checking the vectors")
            with closing(_open_sources(config, columns, files)) as sources:
                plan = _make_plan(config, fields, files, sources)
        with open_for_writing(target, plan, overwrite=overwrite) as writer:
            if not writer.is_complete:
                reports.start(plan, writer.receipts())
                with closing(_open_sources(config, columns, files)) as sources:
                    groups = _groups(sources)
                    n_read = 0
                    for shard in writer.pending():
                        # Shards come in order: the documents of those that are done are passed over.
                        found = [*islice(groups, shard.first_row - n_read, shard.first_row - n_read + shard.n_rows)]
                        n_read = shard.first_row + shard.n_rows
                        result = _result(plan, shard, sources, found)
                        for changed in (name for name, stamp in before.items() if _stamp(name) != stamp):
                            raise InputError("has changed since it was checked; pass `overwrite`", path=str(changed))
                        reports.committed(writer.commit(shard, result))
                writer.complete()
    return open_store(output)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return the size and the time of change of a file; None for a missing file."""
    status = path.stat() if path.is_file() else None
    return None if status is None else (status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class _Sources:
    """The open files of an import: the vectors, and what their rows stand for; None if rows are only numbered."""

    vectors: VectorFile
    rows: RowFile | None

    def close(self) -> None:
        """Close the files."""
        self.vectors.close()
        if self.rows is not None:
            self.rows.close()


def _open_sources(config: ExtractConfig, vector_columns: Sequence[str], files: Sequence[InputFile]) -> _Sources:
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
        return _Sources(vectors, RowFile(others[0], level))
    names = [feature.name for feature in vectors.features]
    has_others = level is Level.WORD or len(names) < len(vectors.columns)
    return _Sources(vectors, RowFile(file, level, names) if has_others else None)


def _fields(config: ExtractConfig, vector_columns: Sequence[str]) -> dict[str, Any]:
    """Return everything that decides the bytes of the parts, as flat JSON values."""
    settings = config.to_dict()
    own = {name: settings[name] for name in _SETTINGS} | {"vector_columns": list(vector_columns)}
    return {IMPORTED: True, "format_version": FORMAT_VERSION, **own}


def _make_plan(config: ExtractConfig, fields: Mapping[str, Any], files: Sequence[InputFile], sources: _Sources) -> Plan:
    """Check all rows and vectors, and cut the documents into shards.

    Raises:
        InputError: A row or a vector cannot be used, an id occurs twice, or rows and vectors do not fit together.
    """
    (level,) = config.levels
    schema = _schema(level, sources)
    layers = sorted({layer for feature in schema.features for layer in feature.layers})
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
        n_layers=layers[-1],
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
        metadata=describe(
            {**fields, "layers": layers, "is_split_into_words": level is Level.WORD},
            model,
            attention="",
            versions={"bertfeat": __version__},
            **{IMPORTED: [_described(file) for file in files]},
        ),
        kept_schema=sources.rows.kept_arrow if sources.rows else None,
    )


def _schema(level: Level, sources: _Sources) -> LevelSchema:
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


def _documents(sources: _Sources, cost: int, register: IdRegister) -> Iterator[ScannedRow]:
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


def _check_unique(register: IdRegister, sources: _Sources) -> None:
    duplicate = register.find_duplicate()
    if duplicate is None or sources.rows is None:
        return
    first, second = (found for number, found in enumerate(sources.rows.groups()) if number in duplicate)
    reason = (
        f"id {second.doc_id!r} appears twice, first at row {first.row}; make ids unique, and keep rows of one together"
    )
    raise InputError(reason, path=sources.rows.file.path, row=second.row)


def _described(file: InputFile) -> dict[str, str]:
    with Path(file.path).open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"file": Path(file.path).name, "format": file.format, "sha256": sha256}


def _groups(sources: _Sources) -> Iterator[Group]:
    """Yield all documents; where nothing tells what the rows are, each is one."""
    if sources.rows is not None:
        return sources.rows.groups()
    return (Group(number, number + 1, 1, None, {}) for number in count())


def _result(plan: Plan, shard: ShardSpec, sources: _Sources, groups: Sequence[Group]) -> ShardResult:
    """Return the rows of a shard, which are those of some documents."""
    start = time.perf_counter()
    ((level, schema),) = plan.schemas.items()
    n_rows = sum(group.n_rows for group in groups)
    vectors, valid = sources.vectors.read(shard.slices[0].offset, n_rows)
    table = LevelTable(level=level, n_rows=n_rows, columns=_columns(schema, groups), vectors=vectors, valid=valid)
    return ShardResult({level: table}, (), {"n_documents": shard.n_rows}, {"import": time.perf_counter() - start})


def _columns(schema: LevelSchema, groups: Sequence[Group]) -> dict[str, Any]:
    """Return the columns of the schema; what no file tells is null."""
    lengths = np.array([group.n_rows for group in groups], np.int64)
    is_text = schema.columns[0].type == "string"
    ids = np.array([group.doc_id for group in groups], object if is_text else np.int64)
    found: dict[str, Any] = {"doc_id": np.repeat(ids, lengths)}
    if schema.level is Level.WORD:
        found |= _word_columns(lengths, groups)
    for name in groups[0].columns:
        found[name] = [*chain.from_iterable(group.columns[name] for group in groups)]
    empty = [None] * int(lengths.sum())
    return {column.name: found.get(column.name, empty) for column in schema.columns}


def _word_columns(lengths: IntArray, groups: Sequence[Group]) -> dict[str, Any]:
    """Return the columns of words: their numbers in the document, and what they are, as far as that is known."""
    known = [("",) * group.n_rows if group.words is None else group.words for group in groups]
    unknown = np.repeat([group.words is None for group in groups], lengths)
    _, start, end = word_bounds(known)
    return {
        "word_index": ragged_arange(np.zeros(len(lengths), np.int64), lengths).astype(np.int32),
        "word": [None if is_unknown else w for w, is_unknown in zip(chain.from_iterable(known), unknown, strict=True)],
        "char_start": np.ma.MaskedArray(start.astype(np.int32), mask=unknown),
        "char_end": np.ma.MaskedArray(end.astype(np.int32), mask=unknown),
    }
