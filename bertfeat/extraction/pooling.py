"""Pooling modes, and the buffers that pool hidden states into the vectors of a level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from bertfeat import extensions
from bertfeat.choices import Combine, Level, Pooling, SpanPair, SpanPooling, StoreDtype
from bertfeat.config import ExtractConfig
from bertfeat.encoder.device_copies import to_device
from bertfeat.encoder.encoder import HiddenStates
from bertfeat.encoder.sentence_model import SentenceMode, SentenceModel
from bertfeat.levels import EMBEDDING, LEVELS
from bertfeat.ragged import ragged_arange, starts_of
from bertfeat.records import BoolArray, FeatureColumn, IntArray, Pack
from bertfeat.text.alignment import Counts, Takes, Units

# A function that puts vectors into some rows of a target: (target, vectors).
Place = Callable[[torch.Tensor, torch.Tensor], None]
# A function that turns joined pooled vectors, float32 (n_rows, n), into embeddings, float32 (n_rows, dim).
Finish = Callable[[torch.Tensor], torch.Tensor]
_CPU = torch.device("cpu")
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class PoolingMode:
    """How the positions of a row become one vector.

    Attributes:
        takes: The positions of a row that are used.
        reduce: Makes one vector per segment. Arguments: states, float (n_tokens, hidden); positions in them, int64
            (n_positions,); the start of each segment in the positions, int64 (n_segments,), no segment empty; the
            weights of the positions, float32 (n_positions,), or None. Returns (n_segments, hidden), float32 unless it
            takes single positions.
        merge: Joins the vectors that two windows give to a row, both (hidden,).
        finish: Turns the merged vectors, (n_rows, hidden), and their sums of weights, float32 (n_rows, 1), into the
            vectors of the rows; None if they are final already.
        is_weighted: Whether later positions have larger weights.
    """

    takes: Takes
    reduce: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    merge: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.add
    finish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    is_weighted: bool = False


def _take(states: torch.Tensor, positions: torch.Tensor, *_: torch.Tensor | None) -> torch.Tensor:
    return states.index_select(0, positions)


# `embedding_bag` is the only fused gather-and-reduce that is deterministic on every device.
def _sum(
    states: torch.Tensor, positions: torch.Tensor, starts: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    return embedding_bag(positions, states.float(), starts, mode="sum", per_sample_weights=weights)


def _max(states: torch.Tensor, positions: torch.Tensor, starts: torch.Tensor, _: torch.Tensor | None) -> torch.Tensor:
    return embedding_bag(positions, states.float(), starts, mode="max")


def _by_root(total: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return total / n.sqrt()


# By the names in `WordPooling`, `Pooling` and `SentenceMode`; packages may add others.
MODES = {
    "first": PoolingMode(Takes.FIRST, _take),
    "last": PoolingMode(Takes.LAST, _take),
    "mean": PoolingMode(Takes.ALL, _sum, torch.add, torch.div),
    "max": PoolingMode(Takes.ALL, _max, torch.maximum),
    "cls": PoolingMode(Takes.CLS, _take),
    "pooler": PoolingMode(Takes.WINDOW, _take),
    "lasttoken": PoolingMode(Takes.LAST, _take),
    "weightedmean": PoolingMode(Takes.ALL, _sum, torch.add, torch.div, is_weighted=True),
    "mean_sqrt_len_tokens": PoolingMode(Takes.ALL, _sum, torch.add, _by_root),
}
_TOKEN_MODE = PoolingMode(Takes.ALL, _take)
# The classification token of sentence-transformers is the first one that counts, whatever the tokenizer says.
_FIRST_TOKEN = PoolingMode(Takes.FIRST, _take)


def modes_of(level: Level, config: ExtractConfig, sentence: SentenceModel | None) -> tuple[PoolingMode, ...]:
    """Return the pooling modes of a level: one; those of the ends of a span; or those that the model's own joins."""
    setting = "pooling" if level in config.text_levels else LEVELS[level].pooling
    if setting is None:
        return (_TOKEN_MODE,)
    name = getattr(config, setting)
    if name is SpanPooling.ENDS:
        return MODES["first"], MODES["last"]
    if name != Pooling.MODEL:
        return (MODES.get(name) or extensions.load("poolings", name),)
    assert sentence is not None
    return tuple(_FIRST_TOKEN if mode is SentenceMode.CLS else MODES[mode] for mode in sentence.modes)


def needs_pooler(config: ExtractConfig) -> bool:
    """Return whether the sentence level uses the pooled output of the model."""
    return bool(config.text_levels) and config.pooling is Pooling.POOLER


def counts_of(config: ExtractConfig, sentence: SentenceModel | None) -> Counts:
    """Return which tokens of a document count in its vector."""
    if sentence is not None:
        return Counts.ALL if sentence.include_prompt else Counts.AFTER_PROMPT
    return Counts.ALL if config.include_special_tokens or config.pooling is Pooling.LASTTOKEN else Counts.TEXT


def combine_layers(layers: Sequence[torch.Tensor], combine: Combine) -> torch.Tensor:
    """Return the float32 sum or mean of layers, each (n, hidden), added in ascending order."""
    total = layers[0].float()
    for layer in layers[1:]:
        total = total + layer
    return total / len(layers) if combine is Combine.MEAN else total


class LevelBuffer:
    """The vectors of one level of one shard: they arrive pack by pack, in any order, and are put into corpus order.

    Pooling, combining and casting run on the encoder's device. The vectors are gathered there too if they fit, so that
    the host receives only what is stored. Rows that several windows share are kept as float32 until the last window.
    `vectors` are the stored vectors by column, (n_rows, dim), on the device where they are gathered.
    """

    def __init__(
        self,
        units: Units,
        mode: PoolingMode,
        columns: Sequence[FeatureColumn],
        dtype: StoreDtype,
        device: torch.device = _CPU,
    ) -> None:
        """Allocate the arrays on `device`: the encoder's device, or the CPU."""
        self._units = units
        self._mode = mode
        self._columns = columns
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._device = device
        self._layers = sorted({layer for column in columns for layer in column.layers})
        self._adds_layers = any(column.combine not in (Combine.NONE, Combine.CONCAT) for column in columns)
        self._n_segments = units.n_segments
        self._weights = units.row_weights if mode.finish else None
        self._parts: dict[int, dict[int, torch.Tensor]] = {}
        self._n_seen: dict[int, int] = {}
        # Not by NumPy, which asks for huge pages: they come from memory that a virtual machine may have given back to
        # its host, and taking it again costs up to 3 ms per MB.
        self.vectors = {
            column.name: torch.empty((units.n_rows, column.dim), dtype=self._dtype, device=device) for column in columns
        }
        empty = np.flatnonzero(~self.valid)
        for vectors in self.vectors.values() if len(empty) else ():
            vectors.index_fill_(0, to_device(empty, device), 0)

    @property
    def valid(self) -> BoolArray:
        """Whether each row has a vector: bool (n_rows,)."""
        return self._n_segments > 0

    def add(self, pack: Pack, states: HiddenStates) -> None:
        """Pool the states of `pack` and put the vectors into their rows."""
        units, device = self._units, self._states(states, self._layers[0]).device
        windows, slots = pack.served
        first, last = units.window_starts[windows], units.window_starts[windows + 1]
        segments = ragged_arange(first, last - first)
        if not len(segments):
            return
        shift = np.repeat(slots if self._is_pooler else starts_of(pack.lengths)[slots], last - first)
        n = units.starts[segments + 1] - units.starts[segments]
        positions = units.positions[ragged_arange(units.starts[segments], n)] + np.repeat(shift, n)
        rows = units.row[segments]
        alone = self._n_segments[rows] == 1
        at, starts = to_device(positions, device), to_device(starts_of(n)[:-1], device)
        weights = None
        if units.weights is not None:
            weights = to_device(units.weights[ragged_arange(units.starts[segments], n)], device)
        if alone.all():
            # To save memory, layers that are not added to others are pooled and stored one at a time.
            batches = [self._layers] if self._adds_layers else [[layer] for layer in self._layers]
            place, counts = _placer(rows, self._device), self._counts(rows, device)
            for layers in batches:
                self._store(place, self._pool(states, layers, at, starts, weights), counts)
            return
        pooled = self._pool(states, self._layers, at, starts, weights)
        self._store_rows(rows[alone], _select(pooled, alone))
        self._collect(rows[~alone], _select(pooled, ~alone))

    def _pool(
        self,
        states: HiddenStates,
        layers: Sequence[int],
        positions: torch.Tensor,
        starts: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> dict[int, torch.Tensor]:
        return {i: self._mode.reduce(self._states(states, i), positions, starts, weights) for i in layers}

    def _states(self, states: HiddenStates, layer: int) -> torch.Tensor:
        return states.pooler() if self._is_pooler else states.layer(layer)

    @property
    def _is_pooler(self) -> bool:
        return self._mode.takes is Takes.WINDOW

    def _counts(self, rows: IntArray, device: torch.device) -> torch.Tensor | None:
        """Return the sum of the weights of each row, float32 (n_rows, 1); None if the mode does not need it."""
        if self._weights is None:
            return None
        return to_device(self._weights[rows].astype(np.float32), device)[:, None]

    def _store_rows(self, rows: IntArray, pooled: Mapping[int, torch.Tensor]) -> None:
        if len(rows):
            counts = self._counts(rows, pooled[self._layers[0]].device)
            self._store(_placer(rows, self._device), pooled, counts)

    def _store(self, place: Place, pooled: Mapping[int, torch.Tensor], counts: torch.Tensor | None) -> None:
        """Put layers into their columns; layers that are summed must be given together."""
        if counts is not None and self._mode.finish is not None:
            pooled = {i: self._mode.finish(merged, counts) for i, merged in pooled.items()}
        cast = {i: vectors.to(self._dtype) for i, vectors in pooled.items()}
        for column in self._columns:
            target = self.vectors[column.name]
            if column.combine in (Combine.NONE, Combine.CONCAT):
                width = column.dim // len(column.layers)
                for k, layer in enumerate(column.layers):
                    if layer in cast:
                        place(target[:, k * width : (k + 1) * width], cast[layer])
            else:
                combined = combine_layers([pooled[i] for i in column.layers], Combine(column.combine))
                place(target, combined.to(self._dtype))

    def _collect(self, rows: IntArray, pooled: Mapping[int, torch.Tensor]) -> None:
        """Merge the vectors of a pack into rows that several windows share; store the rows that are complete."""
        merge = self._mode.merge
        complete = []
        for i, row in enumerate(rows.tolist()):
            part = {layer: vectors[i] for layer, vectors in pooled.items()}
            seen = self._parts.get(row)
            self._parts[row] = part if seen is None else {k: merge(seen[k], part[k]) for k in part}
            self._n_seen[row] = self._n_seen.get(row, 0) + 1
            if self._n_seen[row] == self._n_segments[row]:
                complete.append(row)
        if complete:
            parts = [self._parts.pop(row) for row in complete]
            whole = {layer: torch.stack([part[layer] for part in parts]) for layer in self._layers}
            self._store_rows(np.array(complete, dtype=np.int64), whole)


class SpanBuffer:
    """The vectors of the span level of one shard, each made of several: of its first and last token, or of two spans.

    Those of a layer lie side by side, also in a column of several layers; or the second is subtracted from the first.
    """

    def __init__(
        self,
        buffers: Sequence[LevelBuffer],
        columns: Sequence[FeatureColumn],
        pair: SpanPair,
        dtype: StoreDtype,
    ) -> None:
        self._buffers, self._columns, self._pair = buffers, columns, pair
        self._dtype: torch.dtype = getattr(torch, dtype)

    @property
    def valid(self) -> BoolArray:
        """Whether each row has a vector: bool (n_rows,)."""
        valid: BoolArray = np.logical_and.reduce([buffer.valid for buffer in self._buffers])
        return valid

    def add(self, pack: Pack, states: HiddenStates) -> None:
        """Pool the states of `pack` into each part."""
        for buffer in self._buffers:
            buffer.add(pack, states)

    @property
    def vectors(self) -> dict[str, torch.Tensor]:
        """The stored vectors, (n_rows, dim), once all packs were added."""
        return {column.name: self._joined(column) for column in self._columns}

    def _joined(self, column: FeatureColumn) -> torch.Tensor:
        parts = [buffer.vectors[column.name] for buffer in self._buffers]
        if self._pair is SpanPair.DIFF:
            half = len(parts) // 2
            parts = [first - second for first, second in zip(parts[:half], parts[half:], strict=True)]
        n_layers = len(column.layers) if column.combine == Combine.CONCAT else 1
        by_layer = [part.reshape(len(part), n_layers, part.shape[1] // n_layers) for part in parts]
        return torch.stack(by_layer, 2).reshape(len(parts[0]), column.dim).to(self._dtype)


class EmbeddingBuffer:
    """The model's own sentence embeddings of one shard: pooled by one or several modes, then passed to `finish`."""

    def __init__(self, buffers: Sequence[LevelBuffer], finish: Finish, dtype: StoreDtype) -> None:
        self._buffers = buffers
        self._finish = finish
        self._dtype: torch.dtype = getattr(torch, dtype)

    @property
    def valid(self) -> BoolArray:
        """Whether each row has a vector: bool (n_rows,)."""
        return self._buffers[0].valid

    def add(self, pack: Pack, states: HiddenStates) -> None:
        """Pool the states of `pack` by every mode."""
        for buffer in self._buffers:
            buffer.add(pack, states)

    @property
    def vectors(self) -> dict[str, torch.Tensor]:
        """The stored embeddings, (n_rows, dim), once all packs were added."""
        pooled = [vectors for buffer in self._buffers for vectors in buffer.vectors.values()]
        # In pieces, because the steps compute in float64.
        pieces = zip(*(torch.split(vectors, _ROWS_AT_ONCE) for vectors in pooled), strict=True)
        finished = [self._finish(torch.cat(piece, dim=1)).to(self._dtype) for piece in pieces]
        return {EMBEDDING: torch.cat(finished).to(pooled[0].device)}


def _select(pooled: Mapping[int, torch.Tensor], mask: BoolArray) -> dict[int, torch.Tensor]:
    chosen = np.flatnonzero(mask)
    return {i: vectors.index_select(0, to_device(chosen, vectors.device)) for i, vectors in pooled.items()}


def _placer(rows: IntArray, device: torch.device) -> Place:
    """Return a function that puts vectors into these rows of a target on `device`."""

    def place_on_host(target: torch.Tensor, vectors: torch.Tensor) -> None:
        # On the host, NumPy is five times as fast as `index_copy_`.
        target.numpy()[rows] = vectors.cpu().numpy()

    if device.type == "cpu":
        return place_on_host
    at = to_device(rows, device)

    def place(target: torch.Tensor, vectors: torch.Tensor) -> None:
        target.index_copy_(0, at, vectors)

    return place
