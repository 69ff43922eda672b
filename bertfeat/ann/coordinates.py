"""Two coordinates for each vector: the plane of largest variance, or UMAP."""

from __future__ import annotations

import warnings
from enum import StrEnum
from importlib.util import find_spec

import numpy as np

from bertfeat.ann.transforms import Transform, TransformSpec, fit_transform
from bertfeat.ann.vectorparts import VectorParts, all_batches, checked
from bertfeat.errors import UserError
from bertfeat.nearest import Metric
from bertfeat.records import Float32Array, IntArray

#: The fewest vectors that have a plane.
MIN_VECTORS = 3


class MapMethod(StrEnum):
    """A way to draw vectors in a plane."""

    PCA = "pca"
    UMAP = "umap"

    def check(self) -> None:
        """Raise a UserError if its library is not installed."""
        if self is MapMethod.UMAP and find_spec("umap") is None:
            raise UserError("UMAP needs umap-learn, which is not installed; pip install 'bertfeat[umap]', or use PCA")


def fit_plane(source: VectorParts) -> Transform:
    """Fit a projection to the two axes of largest variance; the vectors are read once.

    The largest component of an axis is positive, so that equal vectors give equal coordinates.

    Raises:
        UserError: There are fewer than three vectors, they have fewer than two values, or all are the same.
    """
    check_plane(source)
    spec = TransformSpec.parse("pca:2")
    try:
        plane = fit_transform(source, spec)
    except UserError as error:
        reason = str(error).removeprefix(f"transform '{spec}': ")
        raise UserError(reason.replace("; use none", "; there is nothing to draw")) from None
    assert plane is not None
    return plane


def check_plane(source: VectorParts) -> None:
    """Raise a UserError if vectors are too few, or too narrow, for a plane."""
    if source.n_vectors < MIN_VECTORS:
        raise UserError(f"{source.n_vectors} rows with a vector: a map takes {MIN_VECTORS} or more")
    if source.dim < 2:
        raise UserError(f"vectors of {source.dim} value: a map takes vectors of 2 or more")


def umap_plane(
    source: VectorParts, neighbours: IntArray, distances: Float32Array, metric: Metric, seed: int
) -> Float32Array:
    """Return coordinates by UMAP (McInnes et al. 2018, arXiv 1802.03426), float32 (n, 2), in one thread.

    All vectors are held in memory as float32.

    Args:
        source: The vectors.
        neighbours: int64 (n, k), the nearest vectors of each, itself first; -1 where there are fewer.
        distances: float32 (n, k), their distances.
        metric: The metric of these distances: cosine or L2.
        seed: The random seed.

    Raises:
        UserError: umap-learn is not installed.
    """
    MapMethod.UMAP.check()
    from umap import UMAP

    vectors = np.concatenate([checked(batch) for batch in all_batches(source)])
    name = "euclidean" if metric is Metric.L2 else str(metric)
    with warnings.catch_warnings(action="ignore"):
        fitted = UMAP(
            n_neighbors=neighbours.shape[1],
            metric=name,
            random_state=seed,
            n_jobs=1,
            precomputed_knn=(neighbours, np.where(neighbours < 0, np.inf, distances)),
        ).fit(vectors)
    return np.asarray(fitted.embedding_, np.float32)
