"""Reader of training data: the labelled rows of a level, and their vectors in memory or as a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, check_labels
from bertfeat.heads.sequences import Sequences
from bertfeat.probes.labels import LabelSource, LabelTable, find_labels, label_rows, none_matches
from bertfeat.probes.vectorstream import FLOAT32_BYTES, StoreStream, lengths_of
from bertfeat.records import BoolArray, IntArray
from bertfeat.store.reader import Store
from bertfeat.vectors.array import ArrayVectors, Vectors

# Fitting may hold the vectors, a standardised copy and values computed from them.
_COPIES = 3
# Work on a chunk makes a few copies of it.
_CHUNK_SHARE = 16
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 8_000_000, 256_000_000


@dataclass(frozen=True, slots=True, eq=False)
class LabelledRows:
    """The rows of a level that have a label.

    Attributes:
        rows: int64 (n_rows,), ascending: their numbers in the level.
        documents: int64 (n_rows,), ascending: the running number of each row's document.
        labels: (n_rows,).
        has_vector: bool (n_rows,): whether a row has a vector of the feature.
        n_total: The number of rows that could take part, with or without a label.
        first_tokens: Whether the rows are first tokens of words, with the labels of the words.
        source: The origin of the labels, for messages.
    """

    rows: IntArray
    documents: IntArray
    labels: Labels
    has_vector: BoolArray
    n_total: int
    first_tokens: bool
    source: str

    @property
    def n_without_label(self) -> int:
        """Rows that are left out because their label is null or empty."""
        return self.n_total - len(self.rows)

    def split(self, share: float, seed: int) -> tuple[LabelledRows, LabelledRows]:
        """Split by documents at random: the second part has a share of them, at least one.

        Raises:
            UserError: There are fewer than two documents.
        """
        names = np.unique(self.documents)
        if len(names) < 2:
            raise UserError(f"too few labelled documents ({len(names)}) to hold some out for dev; pass `dev`")
        n_held = max(1, round(share * len(names)))
        held = np.random.default_rng(seed).choice(names, n_held, replace=False)
        is_held = np.isin(self.documents, held)
        return self._only(~is_held), self._only(is_held)

    def _only(self, chosen: BoolArray) -> LabelledRows:
        arrays = {name: getattr(self, name)[chosen] for name in ("rows", "documents", "labels", "has_vector")}
        return dataclasses.replace(self, n_total=int(chosen.sum()), **arrays)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Vectors and labels of the rows that have both.

    Attributes:
        X: Vectors (n_rows, dim), in memory or as a stream.
        labels: (n_rows,).
        lengths: int64 (n_sequences,): rows of each document that has any, in order; None at sentence level.
        rows: int64 (n_rows,): the rows' numbers in the level.
        labelled: The rows with a label, also those without a vector.
    """

    X: Vectors
    labels: Labels
    lengths: IntArray | None
    rows: IntArray
    labelled: LabelledRows

    @property
    def sequences(self) -> Sequences:
        """The vectors as one sequence per document; at sentence level as one per row."""
        lengths = np.ones(len(self.rows), np.int64) if self.lengths is None else self.lengths
        return Sequences(self.X, lengths)

    @property
    def is_streamed(self) -> bool:
        """Whether the vectors are read again in every pass."""
        return not isinstance(self.X, ArrayVectors)

    @property
    def n_bytes(self) -> int:
        """Bytes in memory of the vectors and of what fitting computes from them."""
        return 0 if self.is_streamed else _n_bytes(*self.X.shape)

    def summary(self) -> dict[str, Any]:
        """Return the number of rows, of rows of each class, and of rows that were left out, as JSON values."""
        classes, counts = np.unique(self.labels, return_counts=True)
        return {
            "n_rows": len(self.rows),
            "n_documents": len(self.rows if self.lengths is None else self.lengths),
            "n_without_vector": len(self.labelled.rows) - len(self.rows),
            "n_without_label": self.labelled.n_without_label,
            "n_classes": len(classes),
            "counts": {str(name): int(count) for name, count in zip(classes.tolist(), counts, strict=True)},
        }


def read_vectors(store: Store, level: Level, feature: str, labelled: LabelledRows, *, max_memory: int) -> Dataset:
    """Read the vectors of labelled rows, into memory if they and what fitting computes from them fit.

    Args:
        store: The store.
        level: A level of the store.
        feature: A feature of the level, stored or made from what is stored.
        labelled: The rows; those without a vector are left out.
        max_memory: Bytes that may be used.

    Raises:
        UserError: There is no such feature, or a vector holds NaN.
        StoreError: A part is missing or damaged.
    """
    chunk_bytes = max(_MIN_CHUNK_BYTES, min(_MAX_CHUNK_BYTES, max_memory // _CHUNK_SHARE))
    stream = stream_of(store, level, feature, labelled, chunk_bytes=chunk_bytes)
    chosen = labelled.has_vector
    return Dataset(
        X=ArrayVectors(stream.whole()) if _n_bytes(*stream.shape) <= max_memory else stream,
        labels=labelled.labels[chosen],
        lengths=None if level is Level.SENTENCE else lengths_of(labelled.documents[chosen]),
        rows=labelled.rows[chosen],
        labelled=labelled,
    )


def stream_of(store: Store, level: Level, feature: str, labelled: LabelledRows, **settings: int) -> StoreStream:
    """Return the vectors of the rows that have one as a stream; see `StoreStream`."""
    chosen = labelled.has_vector
    documents = None if level is Level.SENTENCE else labelled.documents[chosen]
    return StoreStream(store, level, feature, rows=labelled.rows[chosen], documents=documents, **settings)


def select_rows(
    store: Store,
    level: Level,
    feature: str,
    label: str,
    *,
    labels: LabelTable | None = None,
    limit: int | None = None,
) -> LabelledRows:
    """Find the rows of a level that have a label, neither null nor empty.

    Args:
        store: The store, whose columns are read shard by shard; no document is in two shards.
        level: A level of the store.
        feature: A feature of the level.
        label: The column with the labels.
        labels: A file or frame with the labels, joined by `doc_id` (and `word_index` or `token_index`).
        limit: The number of documents to read from the start; None is all.

    Raises:
        UserError: There is no such level, feature or label column.
        StoreError: A part is missing or damaged.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit {limit} is below 1")
    source = find_labels(store, level, label, labels)
    has_vector = store.valid(level, feature)
    candidates = pl.concat(list(_candidates(store, level, source, limit)))
    given = candidates.filter(is_given(candidates["label"]))
    if (
        source.table is not None
        and candidates.height
        and not given.height
        and is_given(source.table[source.name]).any()
    ):
        raise none_matches(store, level, source)
    rows, documents = given["row"].to_numpy(), given["document"].to_numpy()
    return LabelledRows(
        rows=rows,
        documents=documents,
        labels=as_labels(given["label"], source.where),
        has_vector=has_vector[rows],
        n_total=candidates.height,
        first_tokens=level is Level.TOKEN and source.level is Level.WORD,
        source=source.where,
    )


def is_given(labels: pl.Series) -> pl.Series:
    """Return which rows have a label; an empty cell of a .csv or .tsv is read as an empty text, which is not one."""
    given = labels.is_not_null()
    return given & (labels != "").fill_null(value=False) if labels.dtype == pl.String else given


def _candidates(store: Store, level: Level, source: LabelSource, limit: int | None) -> Iterator[pl.DataFrame]:
    """Yield the rows of each shard that may have a label: `row` and `document`, their running numbers, and `label`."""
    n_rows = n_documents = 0
    for entry in store.manifest.shards:
        frame = label_rows(store.shard(entry.shard), level, source).with_columns(
            row=pl.int_range(pl.len(), dtype=pl.Int64) + n_rows,
            document=pl.col("doc_id").rle_id().cast(pl.Int64) + n_documents,
        )
        is_wanted = pl.col("is_candidate") if limit is None else pl.col("is_candidate") & (pl.col("document") < limit)
        yield frame.filter(is_wanted).select("row", "document", "label")
        n_rows += frame.height
        n_documents = frame["document"][-1] + 1 if frame.height else n_documents
        if limit is not None and n_documents >= limit:
            return


def as_labels(values: pl.Series, where: str) -> Labels:
    """Return a column without nulls as labels.

    Raises:
        UserError: The column holds fractions, lists or dates.
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
