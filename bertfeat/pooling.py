"""Pure tensor functions: positions to rows, layers to features, and what several windows give to one row merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import embedding_bag

from bertfeat.config import Combine, StoreDtype
from bertfeat.records import BoolArray, FeatureColumn, IntArray, Pack
from bertfeat.text.alignment import Reduce, Units
from bertfeat.text.ragged import ragged_arange, starts_of

TORCH_DTYPES = {StoreDtype.FLOAT16: torch.float16, StoreDtype.FLOAT32: torch.float32}
POOLER_COLUMN = "pooler"


class States(Protocol):
    """The hidden states of a pack, on the encoder's device."""

    def layer(self, index: int) -> torch.Tensor:
        """Return the states of an absolute layer: (n_tokens, hidden)."""

    def pooler(self) -> torch.Tensor:
        """Return the model's own pooled output: (n_windows, hidden)."""


def reduce_segments(
    states: torch.Tensor, positions: torch.Tensor, starts: torch.Tensor, reduce: Reduce
) -> torch.Tensor:
    """Reduce segments of positions to one vector each.

    Args:
        states: float (n_tokens, hidden).
        positions: int64 (n_positions,), rows of `states`.
        starts: int64 (n_segments,), where each segment starts in `positions`; none is empty.
        reduce: `mean` gives the sum, so that the parts of a row can be added up before they are divided.

    Returns:
        (n_segments, hidden), of the type of `states` for `take` and `max`, float32 for `mean`.
    """
    if reduce is Reduce.TAKE:
        return states.index_select(0, positions)
    # `embedding_bag` is the one fused gather-and-reduce that is deterministic on every device.
    mode = "sum" if reduce is Reduce.MEAN else "max"
    return embedding_bag(positions, states.float(), starts, mode=mode)


def combine_layers(layers: Sequence[torch.Tensor], combine: Combine) -> torch.Tensor:
    """Combine layers, ascending, each (n, hidden): `concat` gives (n, k * hidden), the others (n, hidden)."""
    if combine is Combine.CONCAT:
        return torch.cat(list(layers), dim=1)
    total = layers[0].float()
    for layer in layers[1:]:
        total = total + layer
    return total / len(layers) if combine is Combine.MEAN else total


class LevelBuffer:
    """The vectors of one level of one shard: rows arrive pack by pack, in any order, and stand in corpus order.

    All pooling, combining and casting is done on the encoder's device; the host receives what is stored and no more.
    Only rows that several windows share wait as float32 parts until the last of them has come.

    Attributes:
        vectors: The stored arrays by column, (n_rows, dim).
    """

    def __init__(self, units: Units, columns: Sequence[FeatureColumn], dtype: StoreDtype) -> None:
        """Allocate the arrays.

        Args:
            units: The rows, and where they come from.
            columns: The vector columns.
            dtype: The stored type.
        """
        self._units = units
        self._columns = columns
        self._dtype = TORCH_DTYPES[dtype]
        self._layers = sorted({layer for column in columns for layer in column.layers})
        self._n_segments = units.n_segments
        self._n_positions = np.bincount(units.row, weights=np.diff(units.starts), minlength=units.n_rows)
        self._parts: dict[int, dict[int, torch.Tensor]] = {}
        self._n_seen: dict[int, int] = {}
        self.vectors: dict[str, npt.NDArray[np.floating]] = {
            column.name: np.zeros((units.n_rows, column.dim), dtype=str(dtype)) for column in columns
        }
        self._targets = {name: torch.from_numpy(array) for name, array in self.vectors.items()}

    @property
    def valid(self) -> BoolArray:
        """Which rows have a vector: bool (n_rows,)."""
        return self._n_segments > 0

    def add(self, pack: Pack, states: States) -> None:
        """Pool what `pack` gives to this level and put it into place."""
        units = self._units
        windows, slots = pack.served
        first, last = units.window_starts[windows], units.window_starts[windows + 1]
        segments = ragged_arange(first, last - first)
        if not len(segments):
            return
        shift = np.repeat(starts_of(pack.lengths)[slots], last - first)
        n = units.starts[segments + 1] - units.starts[segments]
        positions = units.positions[ragged_arange(units.starts[segments], n)] + np.repeat(shift, n)
        rows = units.row[segments]
        alone = self._n_segments[rows] == 1
        pooled = self._pool(states, positions, starts_of(n)[:-1])
        if alone.all():
            self._store(rows, pooled, self._n_positions[rows])
            return
        self._store(rows[alone], _select(pooled, alone), self._n_positions[rows[alone]])
        self._collect(rows[~alone], _select(pooled, ~alone))

    def _pool(self, states: States, positions: IntArray, starts: IntArray) -> dict[int, torch.Tensor]:
        device = states.layer(self._layers[0]).device
        at, first = torch.from_numpy(positions).to(device), torch.from_numpy(starts).to(device)
        return {i: reduce_segments(states.layer(i), at, first, self._units.reduce) for i in self._layers}

    def _store(self, rows: IntArray, pooled: Mapping[int, torch.Tensor], n_positions: npt.NDArray[Any]) -> None:
        if not len(rows):
            return
        if self._units.reduce is Reduce.MEAN:
            count = torch.from_numpy(n_positions.astype(np.float32)).to(pooled[self._layers[0]].device)[:, None]
            pooled = {i: total / count for i, total in pooled.items()}
        cast = {i: vectors.to(self._dtype) for i, vectors in pooled.items()}
        place = _placer(rows)
        for column in self._columns:
            target = self._targets[column.name]
            if column.combine in (Combine.NONE, Combine.CONCAT):
                width = column.dim // len(column.layers)
                for k, layer in enumerate(column.layers):
                    place(target[:, k * width : (k + 1) * width], cast[layer])
            else:
                combined = combine_layers([pooled[i] for i in column.layers], Combine(column.combine))
                place(target, combined.to(self._dtype))

    def _collect(self, rows: IntArray, pooled: Mapping[int, torch.Tensor]) -> None:
        merge = torch.maximum if self._units.reduce is Reduce.MAX else torch.add
        for i, row in enumerate(rows.tolist()):
            part = {layer: vectors[i] for layer, vectors in pooled.items()}
            seen = self._parts.get(row)
            self._parts[row] = part if seen is None else {k: merge(seen[k], part[k]) for k in part}
            self._n_seen[row] = self._n_seen.get(row, 0) + 1
            if self._n_seen[row] == self._n_segments[row]:
                whole = {layer: vector[None] for layer, vector in self._parts.pop(row).items()}
                self._store(rows[i : i + 1], whole, self._n_positions[rows[i : i + 1]])


class PoolerBuffer:
    """The model's own pooled output, one vector a document: that of its first window."""

    def __init__(self, units: Units, columns: Sequence[FeatureColumn], dtype: StoreDtype) -> None:
        """Allocate the array; `units` name each document's first window."""
        self._units = units
        self._dtype = TORCH_DTYPES[dtype]
        self.vectors: dict[str, npt.NDArray[np.floating]] = {
            column.name: np.zeros((units.n_rows, column.dim), dtype=str(dtype)) for column in columns
        }
        self._target = torch.from_numpy(self.vectors[POOLER_COLUMN])

    @property
    def valid(self) -> BoolArray:
        """Which rows have a vector: bool (n_rows,)."""
        return self._units.n_segments > 0

    def add(self, pack: Pack, states: States) -> None:
        """Put the pooled output of the first windows in `pack` into place."""
        windows, slots = pack.served
        has_row = self._units.window_starts[windows + 1] > self._units.window_starts[windows]
        rows = self._units.row[self._units.window_starts[windows[has_row]]]
        if len(rows):
            chosen = states.pooler()[torch.from_numpy(slots[has_row])]
            _placer(rows)(self._target, chosen.to(self._dtype))


def _select(pooled: Mapping[int, torch.Tensor], mask: BoolArray) -> dict[int, torch.Tensor]:
    chosen = torch.from_numpy(np.flatnonzero(mask))
    return {i: vectors.index_select(0, chosen.to(vectors.device)) for i, vectors in pooled.items()}


def _placer(rows: IntArray) -> Callable[[torch.Tensor, torch.Tensor], None]:
    at = torch.from_numpy(rows)

    def place(target: torch.Tensor, vectors: torch.Tensor) -> None:
        target.index_copy_(0, at, vectors.cpu())

    return place
