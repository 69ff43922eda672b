"""Rows with a label: the one place that says which rows a probe learns from or is scored on, with their vectors."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from bertfeat.choices import Level, Task
from bertfeat.corpus.tables import read_table
from bertfeat.display import counted
from bertfeat.durable.files import os_errors
from bertfeat.errors import BertfeatWarning, UserError, did_you_mean
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.entities import is_tag_scheme
from bertfeat.heads.sequences import Sequences
from bertfeat.levels import LEVELS, WORDS
from bertfeat.probes.config import LabelTable
from bertfeat.probes.targets import is_given, labels_of
from bertfeat.records import BoolArray, IntArray
from bertfeat.store.reader import Store, check_known, read_columns, row_columns
from bertfeat.vectors.array import ArrayVectors, Vectors
from bertfeat.vectors.store import StoreVectors, lengths_of

_WORD_KEYS = list(LEVELS[Level.WORD].keys)
#: Whether a token is the first of a word.
IS_FIRST_TOKEN = pl.col("word_index").is_not_null() & pl.struct(_WORD_KEYS).is_first_distinct()
# Columns that bertfeat writes; others came with the corpus, and may be labels.
_OWN = {column.name for entry in LEVELS.values() for column in entry.columns}
_TYPES: dict[str, type[pl.DataType]] = {"int64": pl.Int64, "int32": pl.Int32, "string": pl.String}
# Fitting may hold the vectors, a standardized copy and values computed from them, of 4 bytes each.
_BYTES_PER_VALUE = 3 * 4
# Work on a chunk makes a few copies of it.
_CHUNK_SHARE = 16
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 8_000_000, 256_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """The rows of a level that have a label, of `n_total` that could have one; each array is (n_rows,)."""

    level: Level
    rows: IntArray  # their numbers in the level, ascending
    documents: IntArray  # the running numbers of their documents
    labels: Labels  # of the task; numbers may be (n_rows, n_targets)
    has_vector: BoolArray
    n_total: int
    source: LabelSource

    @property
    def n_without_label(self) -> int:
        """The number of rows that are left out because their label is null or empty."""
        return self.n_total - len(self.rows)

    @property
    def lengths(self) -> IntArray | None:
        """The number of rows of each document that has any, int64 (n_documents,); None at sentence level."""
        return None if self.level is Level.SENTENCE else lengths_of(self.documents)

    @property
    def with_vector(self) -> LabelledRows:
        """The rows that have a vector."""
        return self.only(self.has_vector)

    def split(self, share: float, seed: int) -> tuple[LabelledRows, LabelledRows]:
        """Split by documents at random: the second part has a share of them, at least one."""
        names = np.unique(self.documents)
        if len(names) < 2:
            raise UserError(f"too few labelled documents ({len(names)}) to hold some out for dev; pass `dev`")
        n_held = max(1, round(share * len(names)))
        held = np.random.default_rng(seed).choice(names, n_held, replace=False)
        is_held = np.isin(self.documents, held)
        return self.only(~is_held), self.only(is_held)

    def of_documents(self, n_documents: int | None, seed: int) -> LabelledRows:
        """Return the rows of random documents (None is all); by the same seed, more of them include those of fewer."""
        drawn = np.random.default_rng(seed).permutation(np.unique(self.documents))[:n_documents]
        where = f"{self.source.where} in {counted(len(drawn), 'document')}"
        found = self.only(np.isin(self.documents, drawn))
        return dataclasses.replace(found, source=dataclasses.replace(self.source, where=where))

    def stream(self, store: Store, feature: str, chunk_bytes: int = 64_000_000) -> StoreVectors:
        """Return the vectors of the rows that have one, (n_with_vector, dim), as a stream."""
        rows, documents = self.rows[self.has_vector], self.documents[self.has_vector]
        return StoreVectors(store, self.level, feature, rows=rows, documents=documents, chunk_bytes=chunk_bytes)

    def only(self, chosen: BoolArray) -> LabelledRows:
        """Return some of the rows, bool (n_rows,)."""
        if chosen.all() and self.n_total == len(chosen):
            return self
        arrays = {name: getattr(self, name)[chosen] for name in ("rows", "documents", "labels", "has_vector")}
        return dataclasses.replace(self, n_total=int(chosen.sum()), **arrays)


def select_rows(
    store: Store,
    level: Level,
    feature: str,
    label: str,
    labels: LabelTable | None,
    limit: int | None = None,
    task: str = Task.CLASSIFY,
) -> LabelledRows:
    """Find the rows with a label, neither null nor empty, of the first `limit` documents (None is all)."""
    source = LabelSource.find(store, level, label, labels, str(store.path))
    shards, n_rows, n_documents = [], 0, 0
    for entry in store.manifest.shards:
        shard = source.rows(store.shard(entry.shard)).with_columns(
            row=pl.int_range(pl.len(), dtype=pl.Int64) + n_rows,
            document=pl.col("doc_id").rle_id().cast(pl.Int64) + n_documents,
        )
        shards.append(shard.filter("is_candidate").select("row", "document", "label"))
        n_rows += shard.height
        n_documents = shard["document"][-1] + 1 if shard.height else n_documents
        if limit is not None and n_documents >= limit:
            break
    candidates = pl.concat(shards)
    if limit is not None:
        candidates = candidates.filter(pl.col("document") < limit)
    found = candidates.filter(is_given(candidates["label"]))
    if not found.height:
        raise source.error_of_none()
    rows = found["row"].to_numpy()
    return LabelledRows(
        level=level,
        rows=rows,
        documents=found["document"].to_numpy(),
        labels=labels_of(found["label"], task, source.where),
        has_vector=store.valid(level, feature)[rows],
        n_total=candidates.height,
        source=source,
    )


def warn_of_gaps(store: Store, found: LabelledRows, probe: type[Probe]) -> None:
    """Warn that a tagger, or a score of entities, takes words for neighbors between which others were not stored."""
    has_gaps = Level.WORD in store.levels and not {"rows", "positions"}.isdisjoint(store.metadata)
    if has_gaps and found.level in WORDS and (probe.is_tagger or is_tag_scheme(np.unique(found.labels))):
        what = "a tagger and the score of entities take the words that are there for neighbors"
        text = f"{store.path}: holds some words of each document only (`rows`, `positions`); {what}"
        warnings.warn(BertfeatWarning(text), stacklevel=3)


@dataclass(frozen=True, slots=True)
class LabelSource:
    """The column with the labels: of a level, of words for their first tokens, or of a table of keys and labels."""

    name: str
    level: Level
    table: pl.DataFrame | None  # with the store's types and unique keys; None for a column of the store
    of_words: bool  # tokens have the labels of their words
    where: str  # the labels in messages
    place: str  # the store in messages

    @classmethod
    def find(cls, store: Store, level: Level, name: str, labels: LabelTable | None, place: str) -> Self:
        """Find the labels in a table, or in a column of the store."""
        if labels is not None:
            where = "a frame" if isinstance(labels, pl.DataFrame) else str(labels)
            table = _table_of(labels, store, level, name, where)
            return cls(name, level, table, False, f"{where}: column {name!r}", place)
        own, of_documents = row_columns(store, level)
        own += of_documents if level is Level.SPAN else []
        has_words = level is Level.TOKEN and Level.WORD in store.levels
        of_words = [column.name for column in store.schema(Level.WORD).columns] if has_words else []
        if name not in own and name not in of_words:
            hint = did_you_mean(name, [*own, *of_words]) or _hint(level, [*own, *of_words])
            raise UserError(f"{place}: no label column {name!r} at level {level}; {hint}")
        return cls(name, level, None, name not in own, f"{place}: column {name!r}", place)

    def rows(self, shard: Store) -> pl.DataFrame:
        """Return the rows of a shard: `doc_id`, `label` (or null), `is_candidate` (of words, first tokens only)."""
        keys, labels = list(LEVELS[self.level].keys), self.table
        if self.of_words:
            keys, labels = _WORD_KEYS, shard.polars(Level.WORD, [*_WORD_KEYS, self.name])
        if labels is None:
            rows = read_columns(shard, self.level, list(dict.fromkeys(["doc_id", self.name])))
        else:
            rows = shard.polars(self.level, keys).join(labels, on=keys, how="left", maintain_order="left")
        is_candidate = IS_FIRST_TOKEN if self.of_words else pl.lit(True)
        return rows.select("doc_id", label=pl.col(self.name), is_candidate=is_candidate)

    def error_of_none(self) -> UserError:
        """Return the error for labels that no row of the store has."""
        if self.table is None or not is_given(self.table[self.name]).any():
            return UserError(f"{self.where}: no row at level {self.level} has a label; name another column or file")
        return UserError(f"{self.where}: none of its {self.table.height} rows is for a row of {self.place}")


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """The vectors `X` (n_rows, dim) and labels of the rows that have both, and all rows with a label."""

    X: Vectors
    rows: LabelledRows
    labelled: LabelledRows

    def vectors_for(self, probe: Probe) -> Vectors | Sequences:
        """Return the vectors, for a tagger as one sequence per document."""
        return Sequences(self.X, lengths_of(self.rows.documents)) if probe.is_tagger else self.X

    @property
    def is_streamed(self) -> bool:
        """Whether the vectors are read again in every pass."""
        return not isinstance(self.X, ArrayVectors)

    @property
    def n_bytes(self) -> int:
        """Bytes in memory of the vectors and of what fitting computes from them."""
        return 0 if self.is_streamed else self.X.shape[0] * self.X.shape[1] * _BYTES_PER_VALUE


def read_vectors(store: Store, feature: str, labelled: LabelledRows, max_memory: int) -> Dataset:
    """Read the vectors of labelled rows, into memory if they and what fitting computes from them fit."""
    chunk_bytes = max(_MIN_CHUNK_BYTES, min(_MAX_CHUNK_BYTES, max_memory // _CHUNK_SHARE))
    stream = labelled.stream(store, feature, chunk_bytes)
    fits = stream.shape[0] * stream.shape[1] * _BYTES_PER_VALUE <= max_memory
    return Dataset(ArrayVectors(stream.whole()) if fits else stream, labelled.with_vector, labelled)


def _hint(level: Level, columns: Sequence[str]) -> str:
    if found := [column for column in dict.fromkeys(columns) if column not in _OWN]:
        return f"columns that could be labels are {', '.join(found)}"
    named = {Level.SENTENCE: "`keep_columns`", Level.SPAN: "labels in the table of `spans`"}
    option = named.get(level, "`label_column`")
    return f"none came with the corpus; extract with {option}, or pass labels with `labels`"


@os_errors(UserError)
def _table_of(labels: LabelTable, store: Store, level: Level, name: str, where: str) -> pl.DataFrame:
    """Return the keys and the label of a table, of the store's types, checked against the store."""
    keys = LEVELS[level].keys
    if not isinstance(labels, str | Path | pl.DataFrame):
        raise UserError(f"labels are a {type(labels).__name__}; pass a file or a polars DataFrame")
    table = labels if isinstance(labels, pl.DataFrame) else read_table(str(labels), {*keys, name})
    check_known(where, [*keys, name], table.columns)
    types = {column.name: _TYPES[column.type]() for column in store.schema(level).columns if column.name in keys}
    for key, kind in types.items():
        if table[key].dtype.is_float() or table[key].dtype.is_nested():
            raise UserError(f"{where}: {key} is of type {table[key].dtype}; write whole numbers or strings")
        wrong = table[key].filter(table[key].cast(kind, strict=False).is_null())
        if len(wrong):
            raise UserError(f"{where}: {key} {wrong[0]!r} is not {'a whole number' if kind.is_integer() else 'an id'}")
    found = table.select(*keys, name).with_columns(pl.col(key).cast(kind) for key, kind in types.items())
    if found.select(keys).is_duplicated().any():
        *first, times = found.group_by(keys, maintain_order=True).len().filter(pl.col("len") > 1).row(0)
        named = ", ".join(f"{name} {value!r}" for name, value in zip(keys, first, strict=True))
        raise UserError(f"{where}: {named} occurs {times} times; label it once")
    return found
