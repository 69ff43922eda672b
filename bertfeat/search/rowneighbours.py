"""Nearest neighbours of chosen rows among each other, by an index that lives as long as its folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bertfeat.ann.buildsettings import BuildSettings
from bertfeat.ann.indexbuild import build
from bertfeat.ann.indexfiles import read_index
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.ann.vectorparts import VectorBatch
from bertfeat.choices import Level
from bertfeat.progress import Progress
from bertfeat.records import Float32Array, IntArray
from bertfeat.store.reader import Store
from bertfeat.vectors.nearest import Metric

_BATCH_BYTES = 16 << 20


class RowParts:
    """Vectors of chosen rows of a level, read in batches; see `VectorParts`."""

    def __init__(self, store: Store, level: Level, feature: str, rows: IntArray, progress: Progress) -> None:
        self._store, self._level, self._feature, self.rows, self._progress = store, level, feature, rows, progress
        self.dim = store.feature(level, feature).dim
        self.n_vectors = len(rows)
        self.parts: Sequence[range] = [range(len(rows))] if len(rows) else []

    def batches(self, part: int) -> Iterator[VectorBatch]:
        """Yield the vectors of a part in order."""
        step = max(256, _BATCH_BYTES // (4 * self.dim))
        for start in range(0, self.parts[part].stop, step):
            positions = range(start, min(start + step, self.n_vectors))
            self._progress.stage("reading vectors", positions.stop, self.n_vectors)
            rows = self.rows[positions.start : positions.stop]
            yield VectorBatch(positions, self._store.take(self._level, self._feature, rows))


class Neighbours:
    """The nearest rows of each row, by an index of all rows that is built in a folder."""

    def __init__(self, source: RowParts, folder: Path, settings: BuildSettings, k: int) -> None:
        built = build(source, folder, settings)
        self._index = VectorIndex(read_index(built.path), settings.metric, built.transform, built.parameters)
        self.k = k

    def of(self, batch: VectorBatch) -> tuple[IntArray, Float32Array]:
        """Return the positions of the nearest rows, int64 (n, k), the nearest first, and distances, float32 (n, k)."""
        scores, positions = self._index.search(batch.vectors, self.k + 1)
        others = positions != np.arange(batch.positions.start, batch.positions.stop)[:, None]
        # Duplicates may push a row out of its own hits; then drop the last hit.
        others[others.all(axis=1), -1] = False
        distances = scores if self._index.metric is Metric.L2 else np.maximum(0, 1 - scores)
        return positions[others].reshape(-1, self.k), distances[others].reshape(-1, self.k)
