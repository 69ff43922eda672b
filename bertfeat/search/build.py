"""Build of the index of a store: an interrupted build resumes, and the index appears when it is whole."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from bertfeat.ann.budget import CHUNK_BYTES, plan_build
from bertfeat.ann.build import build
from bertfeat.ann.description import AUTO, FILES, QUERIES, ROWS, BuildSettings, IndexDescription
from bertfeat.ann.folder import check_place, publish, read_description, read_given, read_json, write_arrays, write_json
from bertfeat.choices import Level, one_of
from bertfeat.config import parse_size
from bertfeat.durable.differences import differing, named
from bertfeat.durable.file_lock import lock
from bertfeat.durable.files import make_folder, os_errors, write_errors
from bertfeat.durable.output_check import check_folder_above
from bertfeat.durable.publication import publish_file, recover, replaced
from bertfeat.durable.records import to_values
from bertfeat.durable.steps import step
from bertfeat.errors import UserError
from bertfeat.levels import LEVELS, TEXTS
from bertfeat.progress import Progress, reporting
from bertfeat.records import IntArray
from bertfeat.search.index import Index, open_index
from bertfeat.search.origin import Origin
from bertfeat.search.query_vectors import find_query_prompt
from bertfeat.search.reranking import find_tokens_feature, write_tokens
from bertfeat.search.tuning_queries import TuneQueries, find_queries
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store, as_store
from bertfeat.vectors.array import chunks_of
from bertfeat.vectors.nearest import Metric
from bertfeat.vectors.store import StoreVectors

ASKED = "asked.json"
# In this order in a row map. `segment` is the text of a pair that the characters belong to.
_PLACES = ("token_index", "word_index", "span_index", "segment", "char_start", "char_end")
_ROW_GROUP_ROWS = 1 << 16


def build_index(
    store: str | Path | Store,
    output: str | Path,
    *,
    level: str | None = None,
    feature: str | int | None = None,
    factory: str = "auto",
    metric: str = "cosine",
    max_memory: int | str = "4GB",
    transform: str = "none",
    recall: float = 0.95,
    seed: int = 0,
    threads: int | None = None,
    query_prompt_name: str | None = None,
    tune_queries: TuneQueries | None = None,
    text_column: str | None = None,
    rerank: str | None = None,
    codes: str | None = None,
    overwrite: bool = False,
    progress: bool | Progress | None = None,
) -> Index:
    """Index the vectors of a store for searching by similarity.

    The same call resumes an interrupted build; on a finished index it does nothing. The same store and settings give
    the same index on one machine.

    Args:
        store: The store, or its folder.
        output: The index's folder.
        level: `sentence`, `span`, `word` or `token`; by default the only one that is stored; with `rerank` the only one
            of sentences and spans.
        feature: The vectors, stored or made from stored ones (`layer_11` or 11, `mean_last4`); by default the only
            feature that is stored, or `concat_last4`.
        factory: A faiss factory string (`Flat`, `HNSW32`, `IVF1024,SQ8`, ...), or `auto`: by size, memory and recall.
        metric: `cosine`, `ip` (inner product) or `l2` (Euclidean distance).
        max_memory: The most memory of the build, and of the index, without the program itself: bytes, or `"4GB"`.
        transform: What is done to vectors first: `none`, `center`, `whiten`, `whiten:DIM`, `pca:DIM` or
            `truncate:DIM`. Raw BERT vectors have much in common; centring removes it. Truncation keeps the first DIM
            values, at length 1.
        recall: The part of the ten nearest vectors that a search must find; search parameters are tuned for it.
        seed: The random seed.
        threads: Threads to compute on; all by default.
        query_prompt_name: The model's prompt that is put before each query, by name, `""` for none; by default the one
            named `query`, if the rows are the model's own embeddings (pooling `model`) or were made with a prompt;
            none if the rows have the prompt for documents of a model that names none for queries.
        tune_queries: Queries like those to come, 2 or more, better 1,000: they have the recall then. Texts, or a file
            of texts as `QueryFile` reads it (at word and token level each marks a word in brackets); or vectors as they
            are in a store, float (n_queries, dim). Up to 2,000 random ones are used; a random half tunes, the other is
            measured. By default random vectors of the index are used.
        text_column: The column of a file of `tune_queries` with the text; by default `text`.
        rerank: The rows that a search orders its best hits by, `LEVEL:FEATURE` such as `token:layer_06`, for an index
            of sentences or spans: the index also holds a code of each token of the documents (see `Index.search`).
        codes: How a value of these codes is stored: `bit` (its sign), `int8` or `float16`; by default `bit`.
        overwrite: Replace an index that is there.
        progress: See `extract`.

    Returns:
        The index, open; `was_complete` is true if it was finished before.

    Raises:
        UserError: The store, a setting or the place cannot be used; or the memory is too small: the message names an
            index that fits. Nothing is written.
        RunError: The system refused a write; the same call resumes.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="sentence", layers="-1")
        >>> index = build_index(store, tmp / "index", transform="center")
        >>> index.search("Which naming styles are there?", k=1)["doc_id"].to_list()
        [62]
    """
    settings = BuildSettings(
        factory=factory,
        metric=one_of(Metric, "metric", metric),
        transform=transform,
        max_memory=parse_size(max_memory, "max_memory"),
        recall=recall,
        seed=seed,
        n_threads=threads,
    )
    opened = as_store(store)
    where = opened.choose_level(level, tuple(Level) if rerank is None else TEXTS)
    spec = FeatureSpec.of(opened, where, opened.choose_feature(where, feature))
    tokens = find_tokens_feature(opened, spec.level, rerank, codes)
    prompt = find_query_prompt(opened, where, query_prompt_name)
    given = find_queries(tune_queries, opened, spec, prompt, settings, text_column)
    path = local_path(output, "an index")
    if isinstance(opened.path, Path) and path.resolve().is_relative_to(opened.path.resolve()):
        raise UserError(f"{path}: is inside the store {opened.path}; choose another place for the index")
    with reporting(progress) as reports:
        source = StoreVectors(opened, where, spec.feature, chunk_bytes=CHUNK_BYTES, progress=reports)
        if not len(source.rows):
            raise UserError(f"{opened.path}: no row of level {where} has a vector of {spec.feature} to index")
        tuned_by = None if given is None else given.about
        plans = plan_build(*source.shape, settings, 0 if tuned_by is None else tuned_by.n_queries)
        origin = Origin.of(opened, spec, path, rows_digest="", query_prompt=prompt, tuned_by=tuned_by, rerank=tokens)
        _tidy(path)
        if _is_index(path) and not overwrite:
            return _standing(path, opened, settings, origin)
        with workplace(path) as folder:
            asked = _asked(settings, origin)
            if settings.factory == AUTO:
                # What is chosen may change with the version.
                asked["candidates"] = [plan.info.text for plan in plans]
            _check_begun(folder, path, asked, overwrite=overwrite)
            queries = read_given(folder)
            if given is not None and queries is None:
                reports.stage("encoding queries")
                queries = given.vectors()
            reports.stage("checking vectors")
            origin = dataclasses.replace(origin, rows_digest=RowsDigest().add(source))
            # Nothing is written before queries and vectors were read: errors leave no folder behind.
            write_json(folder / ASKED, asked)
            if queries is not None:
                write_arrays(folder / QUERIES, {"vectors": queries})
            described = build(source, folder, plans, queries)
            origin = write_tokens(folder, opened, origin, source.rows, reports)
            reports.stage("writing the index")
            files = [folder / name for name in FILES if name != ROWS]
            publish_index(fresh_ready(folder), path, files, source, described, origin, overwrite=overwrite)
            _empty(folder)
    return open_index(path, store=opened)


def _asked(settings: BuildSettings, origin: Origin) -> dict[str, Any]:
    """Return what an index depends on, as JSON values."""
    asked: dict[str, Any] = to_values(settings)
    # It changes the speed of a build, and in the index only what depends on rounding.
    del asked["n_threads"]
    return asked | {
        "level": str(origin.spec.level),
        "feature": origin.spec.feature,
        "store": origin.plan_hash,
        "query_prompt": origin.query_prompt,
        # Compare queries by digest: the same ones may be in a file of another name.
        "tune_queries": None if origin.tuned_by is None else origin.tuned_by.digest,
        **({} if origin.rerank is None else {"rerank": origin.rerank.named, "codes": origin.rerank.codes}),
    }


def _standing(path: Path, store: Store, settings: BuildSettings, wanted: Origin) -> Index:
    """Open a finished index, unless it has other settings or is damaged; remove what a kill left next to it."""
    there = read_description(path)
    origin = Origin.at(there)
    before = _asked(there.settings, dataclasses.replace(origin, plan_hash=wanted.plan_hash))
    fields = differing(before, _asked(settings, wanted))
    part = store.state(origin.plan_hash)
    if fields or part is not store:
        update = f"run {origin.update_command(store, path)}, choose another `output`"
        if fields:
            said = f"with other settings ({named(fields)}); choose another `output`"
        elif part is None:
            said = f"of another store; if the first rows of {store.path} are the same, {update}"
        else:
            said = f"of {store.path} before rows were added; {update}"
        raise UserError(f"{path}: there is an index already {said}, or pass `overwrite`")
    if _building(path).exists():
        with workplace(path) as folder:
            _empty(folder)
    index = open_index(path, store=store)
    index.was_complete = True
    return index


def publish_index(
    ready: Path,
    path: Path,
    files: Sequence[Path],
    source: StoreVectors,
    description: IndexDescription,
    origin: Origin,
    *,
    overwrite: bool,
) -> None:
    """Add the files that exist, the row map of `source` and the description to the folder `ready`; publish it."""
    for file in files:
        if file.exists():
            (ready / file.name).hardlink_to(file)
            step(f"{file.name}.ready")
    write_row_map(ready / ROWS, source.store, source.level, source.rows)
    step(f"{ROWS}.ready")
    publish(ready, path, dataclasses.replace(description, source=to_values(origin)), overwrite=overwrite)


def fresh_ready(folder: Path) -> Path:
    """Return an empty folder for the files of the finished index."""
    ready = folder / "ready"
    shutil.rmtree(ready, ignore_errors=True)
    ready.mkdir()
    return ready


def _building(index: Path) -> Path:
    """Return the hidden folder, next to an index, in which it is built."""
    index = index.absolute()
    return index.with_name(f".{index.name}.building")


@contextmanager
def workplace(index: Path) -> Iterator[Path]:
    """Lock the hidden folder next to an index in which it is made; remove it in the end if it is empty."""
    folder = _building(index)
    check_folder_above(index)
    with write_errors(folder):
        try:
            fd = lock(folder, os.O_RDONLY | os.O_DIRECTORY, make=make_folder)
        except BlockingIOError:
            raise UserError(f"{index}: another process is making this index; wait for it or stop it") from None
    try:
        recover(index)
        yield folder
    finally:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        os.close(fd)


@os_errors(UserError)
def _tidy(index: Path) -> None:
    """Recover after a kill: restore the index that was moved aside, or remove the empty folder."""
    if _building(index).exists() or replaced(index).exists():
        with workplace(index):
            pass


def _check_begun(folder: Path, index: Path, asked: dict[str, Any], *, overwrite: bool) -> None:
    """Keep unfinished work if its settings are `asked`; else remove it with `overwrite`, or raise a UserError."""
    before = read_json(folder / ASKED, dict[str, Any])
    if before == asked:
        return
    if before is not None and not overwrite:
        text = f"{index}: begun with other settings ({named(differing(before, asked))})"
        raise UserError(f"{text}; use those, or pass `overwrite`")
    _empty(folder)


def _empty(folder: Path) -> None:
    """Remove everything in a folder."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@os_errors(UserError)
def _is_index(index: Path) -> bool:
    """Return whether there is an index at a place, whole or damaged; raise a UserError if there is anything else."""
    check_place(index, overwrite=True)
    return index.is_dir() and any(index.iterdir())


def write_row_map(path: Path, store: Store, level: str, rows: IntArray) -> None:
    """Write the row map of some rows of a level, int64 (n_rows,), ascending: shard, row, id and places of each."""
    columns = store.schema(level)
    # A column of the corpus may have the name of a column that bertfeat writes at another level.
    written = {column.name for column in LEVELS[columns.level].columns} & {column.name for column in columns.columns}
    names = ["doc_id", *(name for name in _PLACES if name in written)]
    stored = store.rows(level, [], names).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    schema = pa.schema(
        [pa.field("part", pa.int32(), nullable=False), pa.field("row", pa.int64(), nullable=False)]
        + [pa.field(name, stored.field(name).type, nullable=name != "doc_id") for name in names]
    )
    shards = np.array([entry.shard for entry in store.manifest.shards], np.int32)
    ends = np.cumsum([part.n_rows for part in store.parts(level)])
    with (
        publish_file(path) as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            use_dictionary=["part"],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in ("row", "char_start") if name in schema.names},
            write_statistics=["row"],
            write_page_checksum=True,
        ) as writer,
    ):
        for start in range(0, len(rows), _ROW_GROUP_ROWS):
            group = rows[start : start + _ROW_GROUP_ROWS]
            head = pl.DataFrame({"part": shards[np.searchsorted(ends, group, side="right")], "row": group})
            frame = head.hstack(store.rows(level, group, names)).rechunk()
            writer.write_table(frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema))


class RowsDigest:
    """A digest of rows in order; it does not depend on how many are added at a time."""

    def __init__(self) -> None:
        self._rows, self._lengths, self._ids, self._vectors = (xxhash.xxh3_128() for _ in range(4))

    def add(self, source: StoreVectors) -> str:
        """Add all rows of a source; return the xxh3-128 of those so far, hex."""
        for span, vectors in chunks_of(source):
            rows = source.rows[span.start : span.stop]
            self._rows.update(rows.astype("<i8").tobytes())
            self._add_ids(source.store.rows(source.level, rows, ["doc_id"])["doc_id"])
            self._vectors.update(np.ascontiguousarray(vectors).data)
        parts = [part.digest() for part in (self._rows, self._lengths, self._ids, self._vectors)]
        return xxhash.xxh3_128(b"".join(parts)).hexdigest()

    def _add_ids(self, ids: pl.Series) -> None:
        if ids.dtype != pl.String:
            self._ids.update(ids.to_numpy().astype("<i8").tobytes())
            return
        # With their lengths, no two lists of ids give the same bytes.
        self._lengths.update(ids.str.len_bytes().to_numpy().astype("<u4").tobytes())
        self._ids.update("".join(ids.to_list()).encode())
