"""Two coordinates for each vector: the plane of largest variance, or UMAP."""

from __future__ import annotations

import warnings
from enum import StrEnum

import numpy as np

from bertfeat.choices import one_of
from bertfeat.errors import UserError, require
from bertfeat.records import Float32Array, IntArray
from bertfeat.vectors.array import Vectors, chunks_of
from bertfeat.vectors.standardized import Moments, Projection, principal_axes


class MapMethod(StrEnum):
    """A way to draw vectors in a plane."""

    PCA = "pca"
    UMAP = "umap"


def parse_method(name: str) -> MapMethod:
    """Return the method of a name; raise a UserError if it is unknown or its library is not installed."""
    method = one_of(MapMethod, "method", name)
    if method is MapMethod.UMAP:
        require("umap", what="method umap needs")
    return method


def fit_plane(source: Vectors) -> tuple[Projection, float]:
    """Return the projection to the two axes of largest variance, and their share of the variance; one pass."""
    n_vectors, dim = source.shape
    if n_vectors < 3 or dim < 2:
        raise UserError(
            f"a map takes 3 rows or more with a vector of 2 values or more, and there are {n_vectors} of {dim}"
        )
    moments = Moments(dim, "scatter")
    for _, vectors in chunks_of(source):
        moments.add(vectors)
    variances, axes = principal_axes(moments, 2)
    share = variances.sum() * (moments.n_rows - 1) / moments.squares.trace()
    return Projection(moments.mean, axes.astype(np.float32)), float(share)


def umap_plane(start: Float32Array, neighbors: IntArray, distances: Float32Array, seed: int) -> Float32Array:
    """Return UMAP's coordinates (McInnes et al. 2018), float32 (n, 2), from a start and neighbors (n, k) of each."""
    from umap import UMAP

    own = np.arange(len(start))[:, None]
    near = np.hstack([own, neighbors]), np.hstack([np.zeros_like(own, np.float32), distances])
    # Noise as UMAP adds to its own starts: equal points could never part, and an axis may be flat.
    noise = np.random.default_rng(seed).normal(scale=1e-4, size=start.shape)
    init = (10 * start / np.abs(start).max() + noise).astype(np.float32)
    with warnings.catch_warnings(action="ignore"):
        # With neighbors and a start, UMAP takes only the number of rows from what it is fitted to.
        model = UMAP(
            n_neighbors=near[0].shape[1], init=init, precomputed_knn=near, random_state=seed % 2**32, n_jobs=1
        ).fit(init)
    return np.asarray(model.embedding_, np.float32)
