"""Measures of all layers of a store, or of the rows that two stores have in common."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bertfeat._version import __version__
from bertfeat.choices import Level
from bertfeat.display import counted, model_text
from bertfeat.errors import BertfeatWarning, UserError
from bertfeat.layers.result import LayerComparison, LayerRow, MovedWord
from bertfeat.layers.sums import (
    N_NEIGHBORS,
    LayerSums,
    PairSums,
    centered_cosine,
    effective_rank,
    intrinsic_dimension,
    neighbors,
    rsa,
    shifts,
)
from bertfeat.levels import LEVELS, WORDS
from bertfeat.memory import free_memory
from bertfeat.progress import Progress, reporting
from bertfeat.records import FeatureColumn, Float32Array, Float64Array, Int32Array, IntArray
from bertfeat.store.reader import Store, as_store
from bertfeat.vectors.nearest import Metric
from bertfeat.vectors.store import StoreVectors

# Word types whose self-similarity and shift are measured.
_MAX_TYPES = 1000
_N_MOVED = 20
_MIN_COUNT = 5
# The unbiased estimate of CKA needs four.
_LEAST_ROWS = 4


@dataclass(slots=True, eq=False)
class _Layer:
    """A layer of a store, "store" or "other": its sums, the vectors of the sample, and its effective rank or NaN."""

    side: str
    feature: FeatureColumn
    vectors: StoreVectors
    sums: LayerSums
    sample: Float32Array
    rank: float = np.nan


def compare_layers(
    store: str | Path | Store,
    other: str | Path | Store | None = None,
    *,
    level: str | None = None,
    min_count: int = _MIN_COUNT,
    sample: int = 2000,
    seed: int = 0,
    progress: bool | Progress | None = None,
    block_bytes: int = 64_000_000,
) -> LayerComparison:
    """Measure the layers of a store, or of two, reading blocks of all layers as float32; see `Store.layers`."""
    for name, value, least in (("min_count", min_count, 2), ("sample", sample, 50), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"`{name}` {value} must be {least} or more")
    one, two = as_store(store), None if other is None else as_store(other)
    where = one.choose_level(level)
    if where not in WORDS and min_count != _MIN_COUNT:
        reason = f"`min_count` has no effect at level {where}, where a row is a text"
        warnings.warn(BertfeatWarning(reason), stacklevel=2)
    with reporting(progress) as reports:
        reports.stage("reading rows")
        frame, words = _matched_rows(one, two, where)
        documents, all_types = frame["document"].to_numpy(), frame["type"].to_numpy()
        places, types, names = _draw(all_types, words, min_count, sample, seed)
        stores = [one] if two is None else [one, two]
        layers = _layers(stores, where, frame, len(names), len(places), block_bytes)
        cka, unbiased = _read(layers, documents, places, types, reports)
        reports.stage("comparing samples")
        k = min(N_NEIGHBORS, len(places) - 1)
        near = [neighbors(layer.sample, k, Metric.COSINE)[1] for layer in layers]
        # The mean share of the neighbors that two layers have in common.
        shared = np.array([[(a[:, :, None] == b[:, None, :]).any(axis=2).mean() for b in near] for a in near])
        others = {layer.feature.name: number for number, layer in enumerate(layers) if layer.side == "other"}
        same = [others.get(layer.feature.name) if layer.side == "store" else None for layer in layers]
        return LayerComparison(
            store=str(one.path),
            model=model_text(one.metadata),
            other=None if two is None else str(two.path),
            other_model=None if two is None else model_text(two.metadata),
            level=str(where),
            n_rows=len(frame),
            n_documents=int(documents[-1]) + 1,
            n_types=len(names),
            n_sample=len(places),
            n_neighbors=k,
            min_count=min_count if LEVELS[where].surface else None,
            seed=seed,
            bertfeat=__version__,
            rows=tuple(
                _measure(layer, None if number is None else (layers[number], values[number]))
                for layer, number, values in zip(layers, same, cka, strict=True)
            ),
            cka=_known(cka),
            cka_debiased=_known(unbiased),
            # Among equal rows no row is nearer than another.
            neighbor_overlap=_known(np.where(np.isnan(cka), np.nan, shared)),
            moved={
                layer.feature.name: _moved(layer, layers[number], names)
                for layer, number in zip(layers, same, strict=True)
                if number is not None
            },
        )


def _draw(
    types: Int32Array, words: Sequence[str], min_count: int, n_sample: int, seed: int
) -> tuple[IntArray, Int32Array, list[str]]:
    """Draw ascending places of rows, and word types: the number of each row's type or -1, and the names of types."""
    rng = np.random.default_rng(seed)
    places = np.sort(rng.choice(len(types), min(n_sample, len(types)), replace=False))
    frequent = np.flatnonzero(np.bincount(types[types >= 0], minlength=len(words)) >= min_count)
    if len(frequent) > _MAX_TYPES:
        frequent = np.sort(rng.choice(frequent, _MAX_TYPES, replace=False))
    # The last number is that of rows without a word.
    numbers = np.full(len(words) + 1, -1, np.int32)
    numbers[frequent] = np.arange(len(frequent))
    return places, numbers[types], [words[number] for number in frequent.tolist()]


def _layers(
    stores: Sequence[Store], level: Level, frame: pl.DataFrame, n_types: int, n_sample: int, block_bytes: int
) -> list[_Layer]:
    """Return the layers of the first store, ascending, then those of the second; all are read in the same blocks."""
    sides = zip(("store", "other"), stores, ("row", "row_other"), strict=False)
    found = [(side, store, rows, layer) for side, store, rows in sides for layer in _features(store, level)]
    step = max(16, block_bytes // (4 * sum(layer.dim for *_, layer in found)))
    layers = []
    for side, store, rows, layer in found:
        settings: Any = {"rows": frame[rows].to_numpy(), "chunk_bytes": 4 * layer.dim * step}
        vectors = StoreVectors(store, level, layer.name, **settings)
        sample = np.empty((n_sample, layer.dim), np.float32)
        layers.append(_Layer(side, layer, vectors, LayerSums(layer.dim, n_types), sample))
    return layers


def _read(
    layers: Sequence[_Layer], documents: Int32Array, places: IntArray, types: Int32Array, reports: Progress
) -> Float64Array:
    """Read all vectors, and return CKA of all pairs of layers, as published and debiased, (2, n_layers, n_layers)."""
    dims = [layer.feature.dim for layer in layers]
    found: Float64Array = np.zeros((2, len(dims), len(dims)))
    pairs = list(itertools.combinations_with_replacement(range(len(dims)), 2))
    # The sums of this many pairs fit into half of the free memory.
    n_pairs = max(1, free_memory() // 2 // (8 * (max(dims) + 1) ** 2))
    n_passes = -(-len(pairs) // n_pairs)
    for n in range(n_passes):
        sums = PairSums(pairs[n * n_pairs : (n + 1) * n_pairs], dims)
        for chunk, rows in enumerate(layers[0].vectors.chunks):
            reports.stage(f"reading vectors, pass {n + 1} of {n_passes}", rows.start, len(documents))
            chosen = sums.layers if n else range(len(dims))
            block = {i: layers[i].vectors.read(chunk).astype(np.float32, copy=False) for i in chosen}
            sums.add(block)
            if n == 0:
                span, inside = slice(rows.start, rows.stop), slice(*np.searchsorted(places, [rows.start, rows.stop]))
                for i, vectors in block.items():
                    layers[i].sums.add(vectors, documents[span], types[span])
                    layers[i].sample[inside] = vectors[places[inside] - rows.start]
        for (i, j), scatter, unbiased in sums.results():
            found[:, i, j] = found[:, j, i] = np.square(scatter).sum(), unbiased
            if i == j:
                layers[i].rank = effective_rank(scatter, float(layers[i].sums.squares.sum()))
    own = np.diagonal(found, axis1=1, axis2=2)
    is_known = (own > 0) & ~np.isnan([layer.rank for layer in layers])
    lengths = np.sqrt(np.where(is_known, own, np.nan))
    found /= lengths[:, :, None] * lengths[:, None, :]
    # Rounding may lift the published value above its bound.
    found[0] = np.minimum(found[0], 1)
    every = range(len(dims))
    found[:, every, every] = np.where(is_known, 1.0, np.nan)
    return found


def _measure(layer: _Layer, same: tuple[_Layer, float] | None) -> LayerRow:
    """Return the row of a layer; `same` is the layer of the same name in the other store, and CKA with it."""
    measures = {
        **layer.sums.measures(),
        "anisotropy_centered": np.nan if math.isnan(layer.rank) else centered_cosine(layer.sample, layer.sums.mean),
        "effective_rank": layer.rank,
        "intrinsic_dimension": intrinsic_dimension(layer.sample),
        "cka_other": same[1] if same else np.nan,
        "rsa_other": rsa(layer.sample, same[0].sample) if same else np.nan,
    }
    return LayerRow(
        side=layer.side,
        feature=layer.feature.name,
        dim=layer.feature.dim,
        top3_dimensions=tuple(np.argsort(-layer.sums.squares, kind="stable")[:3].tolist()),
        **{name: _known(value) for name, value in measures.items()},
    )


def _moved(layer: _Layer, same: _Layer, names: Sequence[str]) -> tuple[MovedWord, ...]:
    """Return the words that moved most between the same layer of two stores."""
    far = shifts(layer.sums.types, same.sums.types)
    order = [place for place in np.argsort(-far, kind="stable").tolist() if not math.isnan(far[place])]
    counts = layer.sums.type_counts
    return tuple(MovedWord(names[place], int(counts[place]), float(far[place])) for place in order[:_N_MOVED])


def _known(value: Any) -> Any:
    """Return a number, or an array of them as tuples, with None for what is not finite."""
    if np.ndim(value):
        return tuple(map(_known, value))
    return float(value) if math.isfinite(value) else None


def _matched_rows(store: Store, other: Store | None, level: Level) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows to measure, matched by document and word: `row`, `row_other`, `document`, `type`; and words."""
    names: dict[str, int] = {}
    frame = _keys(store, level, names)
    if other is not None:
        digests = [one.metadata.get("tokenizer_sha256") for one in (store, other)]
        both = f"{store.path} and {other.path}"
        if level is Level.TOKEN and digests[0] != digests[1]:
            raise UserError(f"{both}: tokens of two tokenizers cannot be matched; pass `level='word'`")
        there = _keys(other, level, names)
        if frame.schema["doc_id"] == there.schema["doc_id"]:
            frame = frame.join(there, on=LEVELS[level].keys, suffix="_other", maintain_order="left")
            frame = frame.filter(pl.col("type").eq(pl.col("type_other")).fill_null(True))
            frame = frame.with_columns(pl.coalesce("type", "type_other").alias("type"))
        if "type_other" not in frame.columns or not len(frame):
            raise UserError(f"{both}: no common rows at level {level}; extract the same corpus with the same ids")
    if len(frame) < _LEAST_ROWS:
        have = f"{counted(len(frame), 'row')} at level {level} to compare"
        raise UserError(f"{store.path}: {have}; layers need {_LEAST_ROWS} or more with a vector")
    known = pl.col("type").fill_null(-1) if LEVELS[level].surface else pl.lit(-1)
    document = pl.col("doc_id").rle_id().cast(pl.Int32).alias("document")
    return frame.with_columns(document, known.cast(pl.Int32).alias("type")), list(names)


def _keys(store: Store, level: Level, numbers: dict[str, int]) -> pl.DataFrame:
    """Return the keys of the rows that count, `row` and `type`, a number of `numbers` or a hash of the text."""
    entry = LEVELS[level]
    surface = entry.surface or "text"
    special = ["is_special"] if "is_special" in store.columns(level) else []
    frames = []
    for shard in store.manifest.shards:
        frame = store.shard(shard.shard).polars(level, [*entry.keys, surface, *special])
        texts = frame[surface]
        if entry.surface:
            found = [None if word is None else numbers.setdefault(word, len(numbers)) for word in texts.to_list()]
            kind = pl.Series(found, dtype=pl.Int32)
        else:
            kind = texts.hash().set(texts.is_null(), None)
        frames.append(frame.select(*entry.keys, *special).with_columns(kind.alias("type")))
    flags: Any = np.logical_and.reduce([store.valid(level, feature.name) for feature in _features(store, level)])
    keys = pl.concat(frames).with_row_index("row").with_columns(pl.col("row").cast(pl.Int64), pl.Series("kept", flags))
    return keys.filter(pl.all_horizontal("kept", *(~pl.col(name) for name in special))).drop("kept", *special)


def _features(store: Store, level: Level) -> list[FeatureColumn]:
    """Return the layers that can be read, ascending; without any, the stored features."""
    found = []
    for layer in range(store.metadata["n_layers"] + 1):
        try:
            found.append(store.feature(level, layer))
        except UserError:
            continue
    return found or list(store.features(level))
