"""`import_vectors`: vectors from elsewhere become a store like any other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from bertfeat.choices import Level
from bertfeat.config import ExtractConfig, parse_size
from bertfeat.corpus.inputs import local_file
from bertfeat.corpus.vectorfiles import vector_file
from bertfeat.corpus.vectorrows import Group
from bertfeat.errors import ConfigError, InputError
from bertfeat.extraction.importplan import Sources, import_fields, make_import_plan, open_sources
from bertfeat.progress import Progress, reporting
from bertfeat.ragged import ragged_arange, word_bounds
from bertfeat.records import InputFile, IntArray, LevelSchema, LevelTable, Plan, ShardResult, ShardSpec
from bertfeat.storage import AnyPath, as_path
from bertfeat.store.folder import folder_at
from bertfeat.store.manifest import IMPORTED, newest_readable
from bertfeat.store.planfile import PlanDamaged, check_same_plan, hash_of_plan, plan_hashes, read_plan
from bertfeat.store.reader import Store, open_store
from bertfeat.store.writer import open_for_writing


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
        fields = import_fields(config, columns)
        plan = None if overwrite else _stored_plan(target, fields, files)
        if plan is None:
            reports.stage("checking the vectors")
            with closing(open_sources(config, columns, files)) as sources:
                plan = make_import_plan(config, fields, files, sources)
        with open_for_writing(target, plan, overwrite=overwrite) as writer:
            if not writer.is_complete:
                reports.start(plan, writer.receipts())
                with closing(open_sources(config, columns, files)) as sources:
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


def _stored_plan(target: AnyPath, fields: dict[str, Any], files: Sequence[InputFile]) -> Plan | None:
    """Return the plan of the store at a place, if there is one; its files are then not checked again.

    Raises:
        PlanMismatch: The store was made by another import, or extracted.
    """
    folder = folder_at(target)
    newest = newest_readable(folder)
    for plan_hash in [newest.plan_hash] if newest else plan_hashes(folder):
        try:
            stored = read_plan(folder, plan_hash)
        except PlanDamaged:
            # The plan is made again, and opening the store for writing repairs the file.
            return None
        if stored is not None:
            # A finished store has its shards, whatever size another run asks for.
            now = fields | ({"shard_bytes": stored.fields.get("shard_bytes")} if newest else {})
            asked = dataclasses.replace(stored, plan_hash=hash_of_plan(now, files), fields=now, inputs=tuple(files))
            check_same_plan(target, stored, asked)
            return stored
    return None


def _groups(sources: Sources) -> Iterator[Group]:
    """Yield all documents; where nothing tells what the rows are, each is one."""
    if sources.rows is not None:
        return sources.rows.groups()
    return (Group(number, number + 1, 1, None, {}) for number in count())


def _result(plan: Plan, shard: ShardSpec, sources: Sources, groups: Sequence[Group]) -> ShardResult:
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
