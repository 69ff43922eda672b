"""Predictions for the rows of a store: as a frame, or written shard by shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat.choices import Level
from bertfeat.durable.files import make_parents
from bertfeat.durable.placecheck import check_file
from bertfeat.durable.publication import publish_file
from bertfeat.exports.framefiles import ENDINGS, frame_writer
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.sequences import Sequences
from bertfeat.levels import LEVELS
from bertfeat.probes.labels import IS_FIRST_TOKEN
from bertfeat.probes.predictedcolumns import PREDICTION, PROBABILITY, Beside
from bertfeat.probes.vectorstream import StoreStream, lengths_of
from bertfeat.records import BoolArray, Float32Array, IntArray, LevelTable
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store
from bertfeat.vectors.array import ArrayVectors, Vectors, chunks_of

_TYPES: dict[str, type[pl.DataType]] = {"U": pl.String, "b": pl.Boolean, "i": pl.Int64, "u": pl.Int64}


class Predicted(NamedTuple):
    """The predicted label of each row, (n_rows,), and its probability, float32 (n_rows,), if the head has any."""

    labels: Labels
    probabilities: Float32Array | None


def predict_rows(probe: Probe, X: Vectors, lengths: IntArray | None) -> Predicted:
    """Predict the label of each row, chunk by chunk, in memory that stays flat for a stream.

    Args:
        probe: A fitted probe.
        X: Vectors (n_rows, dim), in memory or as a stream whose chunks end between sequences.
        lengths: int64 (n_sequences,): the rows of each sequence, for a tagger.
    """
    labels = np.empty(X.shape[0], probe.classes_.dtype)
    probabilities = np.empty(X.shape[0], np.float32) if probe.has_probabilities else None
    # Chunks of a matrix in memory may end inside a sequence: a tagger takes it whole.
    chunks = chunks_of(X)
    if probe.is_tagger and isinstance(X, ArrayVectors):
        chunks = iter([(range(X.shape[0]), X.whole())])
    for rows, vectors in chunks:
        part: Any = vectors
        if probe.is_tagger:
            assert lengths is not None
            part = Sequences(vectors, _lengths_within(lengths, rows))
        span = slice(rows.start, rows.stop)
        if probabilities is None:
            labels[span] = _flat(probe, probe.predict(part))
        else:
            found = _flat(probe, probe.predict_proba(part))
            best = found.argmax(axis=1)
            labels[span] = probe.classes_[best]
            probabilities[span] = found[np.arange(len(best)), best]
    return Predicted(labels, probabilities)


def _flat(probe: Probe, found: Any) -> npt.NDArray[Any]:
    return np.concatenate(found) if probe.is_tagger else found


def _lengths_within(lengths: IntArray, rows: range) -> IntArray:
    """Return the lengths of the sequences in a range of rows."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    first, last = np.searchsorted(starts, [rows.start, rows.stop])
    return lengths[first:last]


def _label_type(probe: Probe) -> pl.DataType:
    return _TYPES[probe.classes_.dtype.kind]()


def predicted_frames(
    probe: Probe, store: Store, level: Level, feature: str, beside: Beside, *, first_tokens: bool
) -> Iterator[pl.DataFrame]:
    """Yield the predictions of each shard: every row of the level, in order; null for a row without a vector.

    Args:
        probe: A fitted probe.
        store: The store.
        level: A level of the store.
        feature: The feature that the probe was fitted on.
        beside: The columns before the predictions.
        first_tokens: Whether the probe labels first tokens of words only; other tokens have no prediction.

    Raises:
        StoreError: A part is missing or damaged.
    """
    for entry in store.manifest.shards:
        shard = store.shard(entry.shard)
        frame = beside.read(shard, level, _columns(level, first_tokens))
        has_vector = shard.valid(level, feature)

        def vectors(rows: IntArray, documents: IntArray | None, shard: Store = shard) -> Vectors:
            return StoreStream(shard, level, feature, rows=rows, documents=documents)

        found = _predicted(probe, frame, level, has_vector, vectors, first_tokens=first_tokens)
        yield found.select(*beside.shown(level), PREDICTION, PROBABILITY)


def predict_table(probe: Probe, table: LevelTable, spec: FeatureSpec, *, first_tokens: bool) -> pl.DataFrame:
    """Return the predictions for rows in memory, with the columns that name a row.

    Args:
        probe: A fitted probe.
        table: The rows of a level, extracted with the settings of the feature.
        spec: The feature.
        first_tokens: See `predicted_frames`.
    """
    frame = pl.DataFrame({name: _series(table.columns[name]) for name in _columns(table.level, first_tokens)})
    has_vector = np.ones(table.n_rows, np.bool_) if table.valid is None else table.valid
    vectors = spec.vectors_in(table)
    found = _predicted(
        probe, frame, table.level, has_vector, lambda rows, _: ArrayVectors(vectors[rows]), first_tokens=first_tokens
    )
    return found.select(*LEVELS[table.level].names, PREDICTION, PROBABILITY)


def _columns(level: Level, first_tokens: bool) -> list[str]:
    return [*LEVELS[level].names, *(["word_index"] if first_tokens else [])]


def _predicted(
    probe: Probe,
    frame: pl.DataFrame,
    level: Level,
    has_vector: BoolArray,
    vectors: Callable[[IntArray, IntArray | None], Vectors],
    *,
    first_tokens: bool,
) -> pl.DataFrame:
    """Add predictions to a frame of rows; null for rows without one.

    Args:
        probe: A fitted probe.
        frame: The columns of all rows.
        level: Their level.
        has_vector: bool (n_rows,).
        vectors: Returns the vectors of some rows, given also the document of each, or None at sentence level.
        first_tokens: See `predicted_frames`.
    """
    if first_tokens:
        has_vector = has_vector & frame.select(IS_FIRST_TOKEN).to_series().to_numpy()
    rows = np.flatnonzero(has_vector)
    documents = None if level is Level.SENTENCE else frame["doc_id"].rle_id().cast(pl.Int64).to_numpy()[rows]
    found = predict_rows(probe, vectors(rows, documents), None if documents is None else lengths_of(documents))
    place = np.full(frame.height, -1)
    place[rows] = np.arange(len(rows))
    at = pl.Series(place).replace(-1, None)
    labels = pl.Series(PREDICTION, found.labels, dtype=_label_type(probe))
    values = [None] * len(rows) if found.probabilities is None else found.probabilities
    probabilities = pl.Series(PROBABILITY, values, dtype=pl.Float32)
    return frame.with_columns(labels.gather(at), probabilities.gather(at))


def _series(values: Any) -> pl.Series:
    if isinstance(values, np.ma.MaskedArray):
        return pl.Series(values.data).set(pl.Series(np.ma.getmaskarray(values)), None)
    return pl.Series(values.tolist() if isinstance(values, np.ndarray) and values.dtype == object else values)


class Written(NamedTuple):
    """A written file: its path, its rows, those of them without a prediction, and the rows of each label.

    `n_set_aside` counts the rows of a corpus that could not be read (`bad_rows="quarantine"`) and are not in the file;
    `n_gold` the rows with a gold label, of which a file of errors has the wrong ones.
    """

    path: Path
    n_rows: int
    n_without: int
    counts: dict[Any, int]
    n_set_aside: int = 0
    n_gold: int | None = None


def check_output(path: str | Path, *, overwrite: bool) -> Path:
    """Return the path of a Parquet or CSV file to write, its folder made.

    Raises:
        UserError: The name has another ending, something is already there, or no folder can be made for it.
    """
    out = local_path(path, "a file of predictions")
    check_file(out, overwrite=overwrite, endings=ENDINGS)
    make_parents(out)
    return out


def write_frames(frames: Iterable[pl.DataFrame], path: Path) -> Written:
    """Write frames with equal columns as one Parquet or CSV file, one after the other, in memory that stays flat.

    Raises:
        UserError: CSV cannot hold a column.
        RunError: The system refused; the old file is unchanged, or the new file is there whole.
    """
    counts: Counter[Any] = Counter()
    with publish_file(path) as sink, frame_writer(path, sink) as write:
        for frame in frames:
            counts.update(frame[PREDICTION].to_list())
            write(frame)
    n_without = counts.pop(None, 0)
    return Written(path, counts.total() + n_without, n_without, dict(counts))
