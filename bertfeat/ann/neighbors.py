"""Nearest neighbors among vectors, by an index that is kept in memory alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bertfeat.ann.budget import plan_build
from bertfeat.ann.build import build
from bertfeat.ann.description import INDEX, BuildSettings
from bertfeat.ann.folder import read_index, read_transform
from bertfeat.ann.index import VectorIndex
from bertfeat.records import Float32Array, IntArray
from bertfeat.vectors.array import FloatArray, Vectors


class NearestNeighbors:
    """The nearest of the vectors of a source: exact among few, with the recall of the settings among many."""

    def __init__(self, source: Vectors, settings: BuildSettings) -> None:
        with tempfile.TemporaryDirectory(prefix="bertfeat-neighbors-") as folder:
            work = Path(folder)
            built = build(source, work, plan_build(*source.shape, settings))
            found = read_index(work / INDEX), settings.metric, read_transform(work), built.parameters
            self._index = VectorIndex(*found)

    def of(self, vectors: FloatArray, k: int, own: IntArray | None = None) -> tuple[Float32Array, IntArray]:
        """Return scores and positions, (n, k), the nearest first; -1 and NaN where fewer are found.

        `own` (n,) are the positions of the vectors themselves, which are left out.
        """
        if own is None:
            return self._index.search(vectors, min(k, self._index.n_vectors))
        scores, positions = self._index.search(vectors, min(k + 1, self._index.n_vectors))
        others = positions != own[:, None]
        # Duplicates may push a row out of its own hits; then the last hit goes.
        others[others.all(axis=1), -1] = False
        shape = len(vectors), positions.shape[1] - 1
        return scores[others].reshape(shape), positions[others].reshape(shape)
