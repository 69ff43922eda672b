"""Reading for learning: the rows of a level that take part, with their labels and their vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.config import Level
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, check_labels
from bertfeat.heads.matrices import Matrix, Sequences
from bertfeat.memory import free_memory
from bertfeat.probes.labels import LabelSource, LabelTable, columns_of, find_labels, label_rows, none_matches
from bertfeat.probes.vectorstream import FLOAT32_BYTES, StoreStream, lengths_of
from bertfeat.records import BoolArray, IntArray
from bertfeat.store.reader import Store

# Fitting may hold the vectors, a standardised copy and what is computed from them.
_COPIES = 3
# A chunk is copied and cast a few times while it is worked on.
_CHUNK_SHARE = 16
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 8_000_000, 256_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """The rows of a level that have a label, or all of them where no labels are asked for.

    Attributes:
        rows: int64 (n_rows,), ascending: their numbers in the level.
        documents: int64 (n_rows,), ascending: the running number of each row's document.
        labels: (n_rows,), or None.
        has_vector: bool (n_rows,): whether a row has a vector of the feature.
        n_total: Rows that could take part, with a label or not.
        first_tokens: Whether labels are those of words, at token level, and rows the first tokens of these.
    """

    rows: IntArray
    documents: IntArray
    labels: Labels | None
    has_vector: BoolArray
    n_total: int
    first_tokens: bool

    @property
    def n_without_label(self) -> int:
        """Rows that are left out for want of a label."""
        return self.n_total - len(self.rows)

    def split(self, share: float, seed: int) -> tuple[LabelledRows, LabelledRows]:
        """Split by documents, drawn at random: a share of them, one at least, stands in the second part.

        Raises:
            UserError: There are fewer than two documents.
        """
        names = np.unique(self.documents)
        if len(names) < 2:
            raise UserError(f"too few labelled documents ({len(names)}) to hold some out for dev; pass --dev")
        n_held = max(1, round(share * len(names)))
        held = np.random.default_rng(seed).choice(names, n_held, replace=False)
        is_held = np.isin(self.documents, held)
        return self._only(~is_held), self._only(is_held)

    def _only(self, chosen: BoolArray) -> LabelledRows:
        return dataclasses.replace(
            self,
            rows=self.rows[chosen],
            documents=self.documents[chosen],
            labels=None if self.labels is None else self.labels[chosen],
            has_vector=self.has_vector[chosen],
            n_total=int(chosen.sum()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """What a probe learns from: vectors and labels of the rows that have both.

    Attributes:
        X: Vectors (n_rows, dim), in memory or as a stream.
        labels: (n_rows,), or None where none were asked for.
        lengths: int64 (n_sequences,): rows of each document that has any, in order; None at sentence level.
        rows: int64 (n_rows,): the rows' numbers in the level.
        labelled: The rows with a label, those without a vector too.
    """

    X: Matrix
    labels: Labels | None
    lengths: IntArray | None
    rows: IntArray
    labelled: LabelledRows

    @property
    def n_total(self) -> int:
        """Rows that could take part."""
        return self.labelled.n_total

    @property
    def n_without_vector(self) -> int:
        """Rows that are left out because truncation left them no vector."""
        return len(self.labelled.rows) - len(self.rows)

    @property
    def n_without_label(self) -> int:
        """Rows that are left out because their label is null or empty."""
        return self.labelled.n_without_label

    @property
    def sequences(self) -> Sequences:
        """The vectors as one sequence a document; at sentence level one a row."""
        lengths = np.ones(len(self.rows), np.int64) if self.lengths is None else self.lengths
        return Sequences(self.X, lengths)

    @property
    def is_streamed(self) -> bool:
        """Whether the vectors are read again in every pass."""
        return isinstance(self.X, StoreStream)

    @property
    def n_bytes(self) -> int:
        """Bytes that the vectors and what fitting makes of them take in memory."""
        return 0 if self.is_streamed else _n_bytes(*self.X.shape)


def read_dataset(
    store: Store,
    level: str,
    feature: str,
    label: str | None = None,
    *,
    labels: LabelTable | None = None,
    max_memory: int | None = None,
    limit: int | None = None,
) -> Dataset:
    """Read what a probe learns from.

    Vectors come into memory where they and what fitting makes of them fit, else they are a stream. Rows without a
    vector or without a label are left out, and counted.

    Args:
        store: The store.
        level: Its level.
        feature: A feature of the level, stored or made from what is stored.
        label: The column with the labels; None for vectors alone.
        labels: A file or frame with the labels, joined by `doc_id` (and `word_index` or `token_index`).
        max_memory: Bytes that may be used; None for half of what is free.
        limit: The first documents alone.

    Raises:
        UserError: There is no such level, feature or label column, or a vector holds NaN.
        StoreError: A part is missing or damaged.
    """
    where = store.schema(level).level
    return read_vectors(
        store,
        where,
        feature,
        select_rows(store, where, feature, label, labels=labels, limit=limit),
        max_memory=max_memory,
    )


def read_vectors(
    store: Store, level: Level, feature: str, labelled: LabelledRows, *, max_memory: int | None = None
) -> Dataset:
    """Read the vectors of rows, those that have one; see `read_dataset`.

    Raises:
        UserError: There is no such feature, or a vector holds NaN.
        StoreError: A part is missing or damaged.
    """
    chosen = labelled.has_vector
    rows, documents = labelled.rows[chosen], labelled.documents[chosen]
    memory = free_memory() // 2 if max_memory is None else max_memory
    is_document = level is Level.SENTENCE
    stream = StoreStream(
        store,
        level,
        feature,
        rows=rows,
        documents=None if is_document else documents,
        chunk_bytes=max(_MIN_CHUNK_BYTES, min(_MAX_CHUNK_BYTES, memory // _CHUNK_SHARE)),
    )
    return Dataset(
        X=stream.whole() if _n_bytes(*stream.shape) <= memory else stream,
        labels=None if labelled.labels is None else labelled.labels[chosen],
        lengths=None if is_document else lengths_of(documents),
        rows=rows,
        labelled=labelled,
    )


def select_rows(
    store: Store,
    level: Level,
    feature: str,
    label: str | None = None,
    *,
    labels: LabelTable | None = None,
    limit: int | None = None,
) -> LabelledRows:
    """Find the rows of a level that have a label (neither null nor empty), or all rows; see `read_dataset`.

    The store's columns are read shard by shard, since documents never span shards.

    Raises:
        UserError: There is no such level, feature or label column.
        StoreError: A part is missing or damaged.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit {limit} is below 1")
    source = None if label is None else find_labels(store, level, label, labels)
    has_vector = store.valid(level, feature)
    pieces = list(_shards(store, level, source, limit))
    n_total = sum(piece.n_candidates for piece in pieces)
    rows = np.concatenate([piece.rows for piece in pieces]) if pieces else np.zeros(0, np.int64)
    documents = np.concatenate([piece.documents for piece in pieces]) if pieces else np.zeros(0, np.int64)
    values = None
    if source is not None:
        series = pl.concat([piece.labels for piece in pieces if piece.labels is not None])
        has_labels = source.table is not None and _is_given(source.table[source.name]).any()
        if has_labels and not len(series) and n_total:
            raise none_matches(store, level, source)
        values = as_labels(series, source.where)
    first_tokens = level is Level.TOKEN and source is not None and source.level is Level.WORD
    return LabelledRows(rows, documents, values, has_vector[rows], n_total, first_tokens)


def _is_given(labels: pl.Series) -> pl.Series:
    """Return which rows have a label; an empty cell of a .csv or .tsv comes as an empty text, and is none."""
    given = labels.is_not_null()
    return given & (labels != "").fill_null(value=False) if labels.dtype == pl.String else given


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """What one shard gives: see `LabelledRows`; `labels` is a polars series."""

    rows: IntArray
    documents: IntArray
    labels: pl.Series | None
    n_candidates: int


def _shards(store: Store, level: Level, source: LabelSource | None, limit: int | None) -> Iterator[_Piece]:
    n_rows = n_documents = 0
    for entry in store.manifest["shards"]:
        shard = store.shard(entry["shard"])
        if source is None:
            frame = columns_of(shard, level, ["doc_id"]).with_columns(is_candidate=True)
        else:
            frame = label_rows(shard, level, source)
        documents = frame["doc_id"].rle_id().cast(pl.Int64).to_numpy() + n_documents
        keep = frame["is_candidate"].to_numpy().copy()
        if limit is not None:
            keep &= documents < limit
        n_candidates = int(keep.sum())
        if source is not None:
            keep &= _is_given(frame["label"]).to_numpy()
        chosen = np.flatnonzero(keep)
        values = None if source is None else frame["label"].gather(chosen)
        yield _Piece(chosen + n_rows, documents[chosen], values, n_candidates)
        n_rows += frame.height
        n_documents = int(documents[-1]) + 1 if len(documents) else n_documents
        if limit is not None and n_documents >= limit:
            return


def as_labels(values: pl.Series, where: str) -> Labels:
    """Return a column without nulls as labels.

    Raises:
        UserError: It holds no labels: fractions, lists, dates.
    """
    if values.dtype in (pl.Categorical, pl.Enum):
        values = values.cast(pl.String)
    if not (values.dtype.is_numeric() or values.dtype in (pl.String, pl.Boolean, pl.Null)):
        raise UserError(f"{where} holds {values.dtype}; labels are strings or integers")
    if not len(values):
        return np.zeros(0, "U1")
    array: npt.NDArray[Any] = values.to_numpy()
    return check_labels(array, what=where)


def _n_bytes(n_rows: int, dim: int) -> int:
    return n_rows * dim * FLOAT32_BYTES * _COPIES
