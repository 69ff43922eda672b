"""Nearest neighbours of chosen rows among each other, by an index that lives as long as its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bertfeat.ann.description import INDEX, BuildSettings
from bertfeat.ann.indexbuild import build, plan_build
from bertfeat.ann.indexfolder import read_index, read_transform
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.records import Float32Array, IntArray
from bertfeat.vectors.array import FloatArray, Vectors
from bertfeat.vectors.nearest import Metric


class Neighbours:
    """The nearest rows of each row, by an index of all rows that is built in a folder."""

    def __init__(self, source: Vectors, folder: Path, settings: BuildSettings, k: int) -> None:
        built = build(source, folder, plan_build(*source.shape, settings))
        index = read_index(folder / INDEX)
        self._index = VectorIndex(index, settings.metric, read_transform(folder), built.parameters)
        self.k = k

    def of(self, rows: range, vectors: FloatArray) -> tuple[IntArray, Float32Array]:
        """Return the positions of the nearest rows, int64 (n, k), the nearest first, and distances, float32 (n, k)."""
        scores, positions = self._index.search(vectors, self.k + 1)
        others = positions != np.arange(rows.start, rows.stop)[:, None]
        # Duplicates may push a row out of its own hits; then drop the last hit.
        others[others.all(axis=1), -1] = False
        distances = scores if self._index.metric is Metric.L2 else np.maximum(0, 1 - scores)
        return positions[others].reshape(-1, self.k), distances[others].reshape(-1, self.k)
