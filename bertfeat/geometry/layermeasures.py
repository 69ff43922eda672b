"""Measures of all layers of a store, or of the rows that two stores have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfeat._version import __version__
from bertfeat.choices import Level
from bertfeat.display import model_text
from bertfeat.errors import UserError
from bertfeat.geometry.layerresult import LayerComparison, LayerRow, MovedWord
from bertfeat.geometry.layerrows import LayerColumn, LayerRows, read_rows
from bertfeat.geometry.layersums import LayerSums, PairSums, effective_rank, passes
from bertfeat.geometry.samplemeasures import (
    N_NEIGHBOURS,
    centred_cosine,
    intrinsic_dimension,
    neighbours,
    overlap,
    rsa,
    shifts,
)
from bertfeat.levels import LEVELS
from bertfeat.memory import free_memory
from bertfeat.progress import Progress, reporting
from bertfeat.records import Float32Array, Float64Array, Int32Array, IntArray
from bertfeat.store.reader import Store, as_store
from bertfeat.vectors.nearest import Metric

# Word types whose self-similarity and shift are measured.
_MAX_TYPES = 1000
_N_MOVED = 20
_MIN_COUNT = 5


@dataclass(slots=True, eq=False)
class _Layer:
    """What is kept of a layer: sums of all rows, the vectors of the sample, and the effective rank, NaN if it has none.

    `same` is the number of the layer of the same name in the other store.
    """

    column: LayerColumn
    same: int | None
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
) -> LayerComparison:
    """Measure the layers of a store, or of two; see `Store.layers`."""
    for name, value, least in (("min_count", min_count, 2), ("sample", sample, 50), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"`{name}` {value} must be {least} or more")
    one = as_store(store)
    where = one.choose_level(level)
    if where is Level.SENTENCE and min_count != _MIN_COUNT:
        raise UserError(f"`min_count` {min_count} has no effect at level sentence, where rows are texts; leave it out")
    two = None if other is None else as_store(other)
    with reporting(progress) as reports:
        reports.stage("reading rows")
        rows = read_rows(one, two, where)
        places, types, names = _draw(rows, min_count, sample, seed)
        layers = _layers(rows, len(names), len(places))
        cka, unbiased = _read(rows, layers, places, types, reports)
        reports.stage("comparing samples")
        k = min(N_NEIGHBOURS, len(places) - 1)
        near = [neighbours(layer.sample, k, Metric.COSINE)[1] for layer in layers]
        shared = np.array([[overlap(first, second) for second in near] for first in near])
        settings = {
            "store": str(one.path),
            "model": model_text(one.metadata),
            "other": None if two is None else str(two.path),
            "other_model": None if two is None else model_text(two.metadata),
            "level": str(where),
            "n_rows": len(rows),
            "n_documents": int(rows.documents[-1]) + 1,
            "n_types": len(names),
            "n_sample": len(places),
            "n_neighbours": k,
            "min_count": min_count if LEVELS[where].surface else None,
            "seed": seed,
            "bertfeat": __version__,
        }
        return LayerComparison(
            rows=tuple(_measure(layer, layers, cka[number]) for number, layer in enumerate(layers)),
            cka=_known(cka),
            cka_debiased=_known(unbiased),
            # Among equal rows no row is nearer than another.
            neighbour_overlap=_known(np.where(np.isnan(cka), np.nan, shared)),
            moved=_moved(layers, names),
            settings=settings,
        )


def _draw(rows: LayerRows, min_count: int, n_sample: int, seed: int) -> tuple[IntArray, Int32Array, list[str]]:
    """Draw ascending places of rows, and word types: the number of each row's type or -1, and the names of types."""
    rng = np.random.default_rng(seed)
    places = np.sort(rng.choice(len(rows), min(n_sample, len(rows)), replace=False))
    frequent = np.flatnonzero(np.bincount(rows.types[rows.types >= 0], minlength=len(rows.names)) >= min_count)
    if len(frequent) > _MAX_TYPES:
        frequent = np.sort(rng.choice(frequent, _MAX_TYPES, replace=False))
    # The last number is that of rows without a word.
    numbers = np.full(len(rows.names) + 1, -1, np.int32)
    numbers[frequent] = np.arange(len(frequent))
    return places, numbers[rows.types], [rows.names[number] for number in frequent.tolist()]


def _layers(rows: LayerRows, n_types: int, n_sample: int) -> list[_Layer]:
    others = {c.feature.name: number for number, c in enumerate(rows.columns) if c.side == "other"}
    return [
        _Layer(
            column,
            others.get(column.feature.name) if column.side == "store" else None,
            LayerSums(column.feature.dim, n_types),
            np.empty((n_sample, column.feature.dim), np.float32),
        )
        for column in rows.columns
    ]


def _read(
    rows: LayerRows, layers: Sequence[_Layer], places: IntArray, types: Int32Array, reports: Progress
) -> Float64Array:
    """Read all vectors, and return CKA of all pairs of layers, as published and debiased, (2, n_layers, n_layers)."""
    dims = [layer.column.feature.dim for layer in layers]
    found: Float64Array = np.zeros((2, len(dims), len(dims)))
    todo = passes(dims, free_memory() // 2)
    for n, pairs in enumerate(todo):
        sums = PairSums(pairs, dims)
        for span, block in rows.blocks(sums.layers if n else range(len(dims))):
            reports.stage(f"reading vectors, pass {n + 1} of {len(todo)}", span.start, len(rows))
            sums.add(block)
            if n == 0:
                inside = slice(*np.searchsorted(places, [span.start, span.stop]))
                for number, vectors in block.items():
                    layers[number].sums.add(vectors, rows.documents[span], types[span])
                    layers[number].sample[inside] = vectors[places[inside] - span.start]
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


def _measure(layer: _Layer, layers: Sequence[_Layer], cka: Float64Array) -> LayerRow:
    """Return the row of a layer; `cka` is its CKA with all layers."""
    centred = np.nan if math.isnan(layer.rank) else centred_cosine(layer.sample, layer.sums.mean)
    measures = {
        **layer.sums.measures(),
        "anisotropy_centred": centred,
        "effective_rank": layer.rank,
        "intrinsic_dimension": intrinsic_dimension(layer.sample),
        "cka_other": np.nan if layer.same is None else cka[layer.same],
        "rsa_other": np.nan if layer.same is None else rsa(layer.sample, layers[layer.same].sample),
    }
    return LayerRow(
        side=layer.column.side,
        feature=layer.column.feature.name,
        dim=layer.column.feature.dim,
        top3_dimensions=tuple(np.argsort(-layer.sums.squares, kind="stable")[:3].tolist()),
        **{name: _known(value) for name, value in measures.items()},
    )


def _moved(layers: Sequence[_Layer], names: Sequence[str]) -> dict[str, tuple[MovedWord, ...]]:
    """Return the words that moved most, for each layer that both stores have."""
    found = {}
    for layer in layers:
        if layer.same is None:
            continue
        one, two = layer.sums.types, layers[layer.same].sums.types
        far = shifts(one.sums, two.sums)
        order = [place for place in np.argsort(-far, kind="stable").tolist() if not math.isnan(far[place])]
        found[layer.column.feature.name] = tuple(
            MovedWord(names[place], int(one.counts[place]), float(far[place])) for place in order[:_N_MOVED]
        )
    return found


def _known(value: Any) -> Any:
    """Return a number, or an array of them as tuples, with None for what is not finite."""
    if np.ndim(value):
        return tuple(map(_known, value))
    return float(value) if math.isfinite(value) else None
