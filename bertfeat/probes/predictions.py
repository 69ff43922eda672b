"""Predictions for the rows of a store: as a frame, or written shard by shard."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
from polars.io.plugins import register_io_source

from bertfeat.config import Level
from bertfeat.errors import RunError, UserError
from bertfeat.heads.base import Labels, Probe
from bertfeat.heads.matrices import Matrix, Sequences, chunk_ranges, read_chunk
from bertfeat.probes.labels import columns_of, key_types
from bertfeat.probes.learningrows import select_rows
from bertfeat.probes.vectorstream import StoreStream, lengths_of
from bertfeat.records import BoolArray, IntArray, LevelTable
from bertfeat.storage import local_path
from bertfeat.store.files import sync_folder
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store

#: The columns that say which row of a level a prediction is for.
ROW_COLUMNS = {
    Level.TOKEN: ("doc_id", "token_index", "token"),
    Level.WORD: ("doc_id", "word_index", "word"),
    Level.SENTENCE: ("doc_id",),
}
_TYPES: dict[str, type[pl.DataType]] = {"U": pl.String, "b": pl.Boolean, "i": pl.Int64, "u": pl.Int64}


class Predicted(NamedTuple):
    """The predicted label of each row, (n_rows,), and its probability, float32 (n_rows,), where the head has any."""

    labels: Labels
    probabilities: npt.NDArray[np.float32] | None


def predict_rows(probe: Probe, X: Matrix, lengths: IntArray | None) -> Predicted:  # noqa: N803
    """Predict the label of each row, chunk by chunk, so that memory stays flat where vectors are a stream.

    Args:
        probe: A fitted probe.
        X: Vectors (n_rows, dim), in memory or as a stream whose chunks end between sequences.
        lengths: int64 (n_sequences,): the rows of each sequence, which a tagger needs.
    """
    labels = np.empty(X.shape[0], probe.classes_.dtype)
    probabilities = np.empty(X.shape[0], np.float32) if probe.has_probabilities else None
    # A matrix in memory has chunks that end anywhere: a tagger takes it whole.
    whole = probe.is_tagger and isinstance(X, np.ndarray)
    for chunk, rows in enumerate([range(X.shape[0])] if whole else chunk_ranges(X)):
        vectors = X if whole else read_chunk(X, chunk)
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
    """Return the lengths of the sequences that make up a range of rows."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    first, last = np.searchsorted(starts, [rows.start, rows.stop])
    return lengths[first:last]


def schema_of(probe: Probe, store: Store, level: Level) -> dict[str, pl.DataType]:
    """Return the columns of predictions for a level of a store, with their types."""
    return {
        **key_types(store, level, ROW_COLUMNS[level]),
        "prediction": _label_type(probe),
        "probability": pl.Float32(),
    }


def _label_type(probe: Probe) -> pl.DataType:
    return _TYPES[probe.classes_.dtype.kind]()


def predicted_frames(
    probe: Probe, store: Store, level: Level, feature: str, *, first_tokens: bool
) -> Iterator[pl.DataFrame]:
    """Yield the predictions of each shard: every row of the level, in order; null where it has no vector.

    Args:
        probe: A fitted probe.
        store: The store.
        level: Its level.
        feature: The feature that the probe was fitted on.
        first_tokens: The probe knows the first tokens of words alone; others have no prediction.

    Raises:
        StoreError: A part is missing or damaged.
    """
    schema = schema_of(probe, store, level)
    for entry in store.manifest["shards"]:
        shard = store.shard(entry["shard"])
        frame = columns_of(shard, level, ROW_COLUMNS[level])
        found = select_rows(shard, level, feature)
        chosen = found.has_vector
        if first_tokens:
            chosen = chosen & _is_first(columns_of(shard, level, ["doc_id", "word_index"]))
        rows = found.rows[chosen]
        documents = None if level is Level.SENTENCE else found.documents[chosen]
        stream = StoreStream(shard, level, feature, rows=rows, documents=documents)
        predicted = predict_rows(probe, stream, None if documents is None else lengths_of(documents))
        yield _with_predictions(frame, rows, predicted, schema)


def _is_first(words: pl.DataFrame) -> BoolArray:
    """Return bool (n_tokens,): which tokens, given by `doc_id` and `word_index`, are the first of a word."""
    is_first = pl.col("word_index").is_not_null() & pl.struct("doc_id", "word_index").is_first_distinct()
    flags: BoolArray = words.select(is_first).to_series().to_numpy()
    return flags


def _with_predictions(
    frame: pl.DataFrame, rows: IntArray, predicted: Predicted, schema: dict[str, pl.DataType]
) -> pl.DataFrame:
    """Add the predictions of some rows to a frame of all rows; null in the others."""
    place = np.full(frame.height, -1)
    place[rows] = np.arange(len(rows))
    at = pl.Series(place).replace(-1, None)
    labels = pl.Series("prediction", predicted.labels, dtype=schema["prediction"])
    if predicted.probabilities is None:
        probabilities = pl.Series("probability", [None] * len(rows), dtype=pl.Float32)
    else:
        probabilities = pl.Series("probability", predicted.probabilities, dtype=pl.Float32)
    return frame.with_columns(labels.gather(at), probabilities.gather(at))


def predict_table(probe: Probe, table: LevelTable, spec: FeatureSpec, *, first_tokens: bool) -> pl.DataFrame:
    """Return the predictions for rows in memory, with the columns of `predicted_frames`.

    Args:
        probe: A fitted probe.
        table: The rows of a level, with the columns that the feature's own settings give.
        spec: The feature.
        first_tokens: See `predicted_frames`.
    """
    level = table.level
    frame = pl.DataFrame({name: _series(table.columns[name]) for name in ROW_COLUMNS[level]})
    chosen = np.ones(table.n_rows, np.bool_) if table.valid is None else table.valid
    if first_tokens:
        words = pl.DataFrame({"doc_id": frame["doc_id"], "word_index": _series(table.columns["word_index"])})
        chosen = chosen & _is_first(words)
    rows = np.flatnonzero(chosen)
    documents = frame["doc_id"].rle_id().to_numpy().astype(np.int64)[rows]
    lengths = None if level is Level.SENTENCE else lengths_of(documents)
    predicted = predict_rows(probe, spec.vectors_of(table)[rows], lengths)
    schema = {"prediction": _label_type(probe), "probability": pl.Float32()}
    return _with_predictions(frame, rows, predicted, schema)


def _series(values: Any) -> pl.Series:
    if isinstance(values, np.ma.MaskedArray):
        return pl.Series(values.data).set(pl.Series(np.ma.getmaskarray(values)), None)
    return pl.Series(values.tolist() if isinstance(values, np.ndarray) and values.dtype == object else values)


class Written(NamedTuple):
    """What was written: the file, its rows, how many of them have no prediction, and how often each label stands.

    `n_set_aside` counts the rows of a corpus that could not be read (`bad_rows="quarantine"`) and are not in the file.
    """

    path: Path
    n_rows: int
    n_without: int
    counts: dict[Any, int]
    n_set_aside: int = 0


def check_output(path: str | Path, *, overwrite: bool) -> Path:
    """Return the path of a Parquet file to write, its folder made.

    Raises:
        UserError: It is no name of a Parquet file, or something stands there.
    """
    out = local_path(path, "a file of predictions")
    if out.suffix.lower() != ".parquet":
        raise UserError(f"{out}: predictions are written as Parquet; name a file that ends in .parquet")
    if out.is_dir() or out.is_symlink() or (out.exists() and not overwrite):
        what = "is a folder" if out.is_dir() else "is a link" if out.is_symlink() else "exists"
        raise UserError(f"{out}: {what}; name another file{'' if what != 'exists' else ', or pass --overwrite'}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out.parent}: cannot be made a folder: {(error.strerror or str(error)).lower()}") from error
    return out


def write_frames(frames: Iterator[pl.DataFrame], schema: dict[str, pl.DataType], path: Path) -> Written:
    """Write frames as one Parquet file, one after the other, in memory that stays flat.

    Raises:
        RunError: The system refused; what stood there is unchanged, or the new file is there whole.
    """
    counts: Counter[Any] = Counter()

    def generate(*_: Any) -> Iterator[pl.DataFrame]:
        for frame in frames:
            counts.update(frame["prediction"].to_list())
            yield frame

    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with unfinished.open("xb") as file:
            register_io_source(generate, schema=schema).sink_parquet(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        sync_folder(path.parent)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = " ".join(str(error.strerror if isinstance(error, OSError) and error.strerror else error).split())
        raise RunError(f"{path}: cannot be written: {reason.lower()}; see to it and predict again") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
    n_without = counts.pop(None, 0)
    return Written(path, counts.total() + n_without, n_without, dict(counts))
