"""`import_vectors`: vectors from elsewhere become a store like any other."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from bertfeat._version import __version__
from bertfeat.choices import Level
from bertfeat.config import ExtractConfig, parse_size
from bertfeat.corpus import ScannedRow, cut_shards
from bertfeat.corpus.corpus import local_file
from bertfeat.corpus.vector_files import NpyVectors, ParquetVectors, VectorFile, VectorRows, read_rows, vector_file
from bertfeat.errors import ConfigError, InputError
from bertfeat.extraction.plan import describe, row_bytes, stored_plan
from bertfeat.levels import LEVELS
from bertfeat.progress import Progress, reporting
from bertfeat.records import FORMAT_VERSION, Column, InputFile, LevelSchema, LevelTable, ModelInfo, Plan, ShardResult
from bertfeat.storage import as_path
from bertfeat.store.manifest import IMPORTED
from bertfeat.store.plan_file import hash_of_plan
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import open_for_writing

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
        >>> import numpy as np
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
    settings = {"levels": (level,), "model": model, "store_dtype": store_dtype, "vector_encoding": vector_encoding}
    config = ExtractConfig.from_dict({**settings, "shard_bytes": parse_size(shard_bytes, "shard_bytes")})
    columns = [vector_columns] if isinstance(vector_columns, str) else [*dict.fromkeys(vector_columns)]
    before = {Path(name): _stamp(Path(name)) for name in (path, ids) if name is not None}
    files = [vector_file(str(path))]
    if ids is not None:
        files.append(local_file(str(ids)))
    target = as_path(output)
    with reporting(progress) as reports:
        # Everything that decides the bytes of the parts, as flat JSON values.
        fields = {IMPORTED: True, "format_version": FORMAT_VERSION, "vector_columns": columns}
        fields |= {name: value for name, value in config.to_dict().items() if name in _SETTINGS}
        opened = cache(partial(_open, config, columns, files))
        plan = None if overwrite else stored_plan(target, fields, files)
        if plan is None:
            reports.stage("checking the vectors")
            plan = _make_plan(config, fields, files, *opened())
        with open_for_writing(target, plan, overwrite=overwrite) as writer:
            if not writer.is_complete:
                reports.start(plan, writer.receipts())
                vectors, rows = opened()
                for shard in writer.pending():
                    result = _result(Level(level), vectors, rows, shard.first_row, shard.n_rows)
                    for changed in (name for name, stamp in before.items() if _stamp(name) != stamp):
                        raise InputError("has changed since it was checked; pass `overwrite`", path=str(changed))
                    reports.committed(writer.commit(shard, result))
                writer.complete()
    return open_store(output)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return the size and the time of change of a file; None for a missing file."""
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None


def _open(config: ExtractConfig, columns: Sequence[str], files: Sequence[InputFile]) -> tuple[VectorFile, VectorRows]:
    """Open the vectors, and read what their rows stand for."""
    (level,) = config.levels
    file, *others = files
    vectors: VectorFile
    left_out: list[str] = []
    if file.format == "parquet":
        if others:
            raise ConfigError(f"`ids` does not go with {file.format}, whose other columns come along")
        vectors = table = ParquetVectors(file, config.store_dtype, columns)
        left_out = [feature.name for feature in table.features]
        others = [file] if level is Level.WORD or len(left_out) < len(table.columns) else []
    else:
        if columns:
            raise ConfigError(f"`vector_columns` does not go with {file.path} ({file.format}); it is for parquet")
        if level is Level.WORD and not others:
            raise ConfigError(
                f"{file.path}: does not say where texts end, as `level='word'` must know; pass `ids`, a table with "
                "doc_id and word or a CoNLL file"
            )
        vectors = NpyVectors(file, config.store_dtype)
    if others:
        rows = read_rows(others[0], level, left_out)
    else:
        rows = VectorRows(file.path, level, {}, range(1, vectors.n_rows + 1))
    if (n_rows := rows.table.num_rows) != vectors.n_rows:
        reason = f"has {vectors.n_rows:,} vectors, and {rows.path} has {n_rows:,} rows; one vector per row"
        raise InputError(reason, path=file.path)
    if both := [feature.name for feature in vectors.features if feature.name in rows.table.column_names]:
        raise ConfigError(f"column {both[0]!r} has the name of a column of vectors; rename it")
    return vectors, rows


def _make_plan(
    config: ExtractConfig, fields: Mapping[str, Any], files: Sequence[InputFile], vectors: VectorFile, rows: VectorRows
) -> Plan:
    """Check all vectors, and cut the documents into shards."""
    vectors.check()
    (level,) = config.levels
    features = vectors.features
    columns = [Column(c.name, str(c.type), nullable=c.name not in LEVELS[level].keys) for c in rows.table.schema]
    layers = sorted({layer for feature in features for layer in feature.layers})
    costs = rows.costs(row_bytes(level, features, config.store_dtype))
    documents = (
        ScannedRow(number, 0, rows.path, start, start + 1, None, cost, None, None, None)
        for number, (start, cost) in enumerate(zip(rows.starts.tolist(), costs, strict=True))
    )
    model = ModelInfo(
        name=config.model,
        revision=None,
        family=IMPORTED,
        weights_sha256="",
        tokenizer_sha256="",
        n_layers=layers[-1],
        hidden_size=features[0].dim,
        max_length=0,
    )
    return Plan(
        plan_hash=hash_of_plan(fields, files),
        fields=dict(fields),
        inputs=tuple(files),
        model=model,
        schemas={level: LevelSchema(level, tuple(columns), features)},
        shards=cut_shards(documents, lambda row: row.n_bytes, config.shard_bytes, keep_groups=False),
        metadata=describe(
            {**fields, "layers": layers, "is_split_into_words": level is Level.WORD},
            model,
            attention="",
            versions={"bertfeat": __version__},
            **{IMPORTED: [_described(file) for file in files]},
        ),
        kept_schema=rows.kept_arrow,
    )


def _described(file: InputFile) -> dict[str, str]:
    with Path(file.path).open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"file": Path(file.path).name, "format": file.format, "sha256": sha256}


def _result(level: Level, vectors: VectorFile, rows: VectorRows, first: int, n_documents: int) -> ShardResult:
    """Return the rows of some documents."""
    began = time.perf_counter()
    start, n_rows = int(rows.starts[first]), int(rows.lengths[first : first + n_documents].sum())
    found = rows.table.slice(start, n_rows).combine_chunks()
    columns = {name: found[name].chunk(0) for name in found.column_names}
    values, valid = vectors.read(start, n_rows)
    table = LevelTable(level=level, n_rows=n_rows, columns=columns, vectors=values, valid=valid)
    return ShardResult({level: table}, (), {"n_documents": n_documents}, {"import": time.perf_counter() - began})
