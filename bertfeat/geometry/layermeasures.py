"""Measures of all layers of a store, or of the rows that two stores have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfeat._version import __version__
from bertfeat.config import parse_size
from bertfeat.display import model_text
from bertfeat.errors import UserError
from bertfeat.geometry.layerresult import LayerComparison, LayerRow, MovedWord
from bertfeat.geometry.layerrows import LayerRows, read_rows
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
from bertfeat.nearest import Metric
from bertfeat.progress import Progress, reporting
from bertfeat.records import Float32Array, Float64Array, Int32Array, IntArray
from bertfeat.store.reader import Store, open_store

# Word types whose self-similarity and shift are measured.
_MAX_TYPES = 1000
_LEAST_SAMPLE = 50
_N_MOVED = 20


def compare_layers(
    store: str | Path | Store,
    other: str | Path | Store | None = None,
    *,
    level: str = "word",
    min_count: int = 5,
    sample: int = 2000,
    seed: int = 0,
    max_memory: int | str = "1GB",
    progress: bool | Progress | None = None,
) -> LayerComparison:
    """Measure how the vectors of each layer lie in space, and how layers, or two models, differ.

    Vectors are read in one pass, in memory that does not grow with the rows: `max_memory` for the sums of pairs of
    layers, the sample of rows, and the sums of up to 1,000 word types. If the sums of all pairs do not fit, further
    passes follow.

    Args:
        store: The store, or its folder.
        other: Another store of the same corpus: of a fine-tuned or adapted model, of random weights, of another family.
            Then only rows that both have count, matched by document and word.
        level: The level: word, token or sentence.
        min_count: The fewest rows of a word type whose self-similarity is measured; 2 or more.
        sample: The rows whose neighbours and pairs are compared, drawn by seed; 50 or more.
        seed: The seed of the sample, and of the word types where there are more than 1,000.
        max_memory: Bytes for the sums of pairs of layers: 13 layers of 768 values take 430 MB.
        progress: See `extract`.

    Raises:
        UserError: A store or a setting cannot be used, too few rows have vectors, or the stores have no common rows.
        StoreError: A part is missing or damaged.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="word", layers="0,3,6", limit=20)
        >>> layers = compare_layers(store)
        >>> [row.feature for row in layers.rows]
        ['layer_00', 'layer_03', 'layer_06']
        >>> layers.cka[0][0]
        1.0
    """
    for name, value, least in (("min_count", min_count, 2), ("sample", sample, _LEAST_SAMPLE), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"`{name}` {value} must be {least} or more")
    n_bytes = parse_size(max_memory, "`max_memory`")
    one = store if isinstance(store, Store) else open_store(store)
    two = other if other is None or isinstance(other, Store) else open_store(other)
    with reporting(progress) as reports:
        reports.stage("reading rows")
        rows = read_rows(one, two, level)
        measured = _Measured.of(rows, _Sample.draw(rows, min_count, sample, seed), n_bytes, reports)
        reports.stage("comparing samples")
        settings = {
            "store": str(one.path),
            "model": model_text(one.metadata),
            "other": None if two is None else str(two.path),
            "other_model": None if two is None else model_text(two.metadata),
            "level": level,
            "n_rows": len(rows),
            "n_documents": int(rows.documents[-1]) + 1,
            "n_types": len(measured.sample.names),
            "n_sample": len(measured.sample.places),
            "n_neighbours": measured.k,
            "min_count": min_count if rows.types is not None else None,
            "seed": seed,
            "bertfeat": __version__,
        }
        return LayerComparison(
            rows=tuple(measured.rows()),
            cka=_json_matrix(measured.cka),
            neighbour_overlap=_json_matrix(measured.overlaps()),
            moved=measured.moved(),
            settings=settings,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """What a seed chose: ascending places of rows, word types, and for each row the number of its type, or -1."""

    places: IntArray
    types: Int32Array
    names: list[str]

    @classmethod
    def draw(cls, rows: LayerRows, min_count: int, n_sample: int, seed: int) -> _Sample:
        rng = np.random.default_rng(seed)
        places = np.sort(rng.choice(len(rows), min(n_sample, len(rows)), replace=False))
        if rows.types is None:
            return cls(places, np.full(len(rows), -1, np.int32), [])
        frequent = np.flatnonzero(np.bincount(rows.types, minlength=len(rows.names)) >= min_count)
        if len(frequent) > _MAX_TYPES:
            frequent = np.sort(rng.choice(frequent, _MAX_TYPES, replace=False))
        numbers = np.full(len(rows.names), -1, np.int32)
        numbers[frequent] = np.arange(len(frequent))
        return cls(places, numbers[rows.types], [rows.names[number] for number in frequent.tolist()])


@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """What the passes over the rows leave: sums, vectors of the sample, effective ranks and CKA, per column."""

    read: LayerRows
    sample: _Sample
    sums: list[LayerSums]
    vectors: list[Float32Array]
    ranks: dict[int, float]
    cka: Float64Array

    @classmethod
    def of(cls, rows: LayerRows, sample: _Sample, max_bytes: int, reports: Progress) -> _Measured:
        dims = {number: column.feature.dim for number, column in enumerate(rows.columns)}
        sums = [LayerSums(dim, len(sample.names)) for dim in dims.values()]
        vectors = [np.empty((len(sample.places), dim), np.float32) for dim in dims.values()]
        ranks, squares = {}, np.zeros((len(dims), len(dims)))
        todo = passes(dims, max_bytes)
        for n, pairs in enumerate(todo):
            products = PairSums(pairs, dims)
            for span, block in rows.blocks(list(dims) if n == 0 else products.layers):
                reports.stage(f"reading vectors, pass {n + 1} of {len(todo)}", span.start, len(rows))
                products.add(block)
                if n == 0:
                    _add(rows, sample, span, block, sums, vectors)
            for (i, j), scatter in products.scatters():
                squares[i, j] = squares[j, i] = np.square(scatter).sum()
                if i == j:
                    ranks[i] = effective_rank(scatter)
        own = np.sqrt(np.diag(squares))
        with np.errstate(invalid="ignore", divide="ignore"):
            cka = squares / np.outer(own, own)
        np.fill_diagonal(cka, np.where(own > 0, 1.0, np.nan))
        return cls(rows, sample, sums, vectors, ranks, cka)

    @property
    def k(self) -> int:
        return min(N_NEIGHBOURS, len(self.sample.places) - 1)

    def rows(self) -> list[LayerRow]:
        partners = dict(self._partners())
        found = []
        for number, column in enumerate(self.read.columns):
            same = partners.get(number)
            measures = {
                **self.sums[number].measures(),
                "anisotropy_centred": centred_cosine(self.vectors[number], self.sums[number].mean),
                "effective_rank": self.ranks[number],
                "intrinsic_dimension": intrinsic_dimension(self.vectors[number]),
                "cka_other": np.nan if same is None else float(self.cka[number, same]),
                "rsa_other": np.nan if same is None else rsa(self.vectors[number], self.vectors[same]),
            }
            found.append(
                LayerRow(
                    side=column.side,
                    feature=column.feature.name,
                    dim=column.feature.dim,
                    top3_dimensions=tuple(self.sums[number].largest()),
                    **{name: _known(value) for name, value in measures.items()},
                )
            )
        return found

    def overlaps(self) -> Float64Array:
        """Return the mutual k-nearest-neighbour overlap of all pairs of columns."""
        near = [neighbours(vectors, self.k, Metric.COSINE)[1] for vectors in self.vectors]
        return np.array([[overlap(one, two) for two in near] for one in near])

    def moved(self) -> dict[str, tuple[MovedWord, ...]]:
        """Return the words that moved most, for each layer that both stores have."""
        found = {}
        for number, same in self._partners():
            one, two = self.sums[number].types, self.sums[same].types
            is_known = np.flatnonzero(one.sums.any(axis=1) & two.sums.any(axis=1)).tolist()
            if len(is_known) < 3:
                continue
            far = shifts(one.sums[is_known], two.sums[is_known])
            order = [place for place in np.argsort(-far, kind="stable") if not math.isnan(far[place])][:_N_MOVED]
            found[self.read.columns[number].feature.name] = tuple(
                MovedWord(self.sample.names[is_known[place]], int(one.counts[is_known[place]]), float(far[place]))
                for place in order
            )
        return found

    def _partners(self) -> list[tuple[int, int]]:
        """Return the numbers of the columns of the store and of the other store that have the same name."""
        others = {c.feature.name: number for number, c in enumerate(self.read.columns) if c.side == "other"}
        return [
            (number, others[column.feature.name])
            for number, column in enumerate(self.read.columns)
            if column.side == "store" and column.feature.name in others
        ]


def _add(
    rows: LayerRows,
    sample: _Sample,
    span: slice,
    block: dict[int, Float32Array],
    sums: list[LayerSums],
    vectors: list[Float32Array],
) -> None:
    """Add a block to the sums of each column, and keep its rows that are in the sample."""
    places = slice(*np.searchsorted(sample.places, [span.start, span.stop]))
    inside = sample.places[places] - span.start
    for number, found in block.items():
        sums[number].add(found, rows.documents[span], sample.types[span])
        vectors[number][places] = found[inside]


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _json_matrix(matrix: Any) -> tuple[tuple[float | None, ...], ...]:
    return tuple(tuple(_known(value) for value in line) for line in matrix)
