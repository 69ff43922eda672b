"""Moments of vectors, added up block by block, standardization by mean and deviation, and principal axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.records import Float32Array, Float64Array
from bertfeat.vectors.array import ArrayVectors, Vectors, chunks_of

# A deviation below this share of the mean comes from rounding; the dimension is constant.
_ROUNDING = 10 * np.finfo(np.float64).eps
# Rows that are turned to float64 at a time.
_STEP_ROWS = 2048


class Moments:
    """The mean of vectors, float64 (dim,), and the sums of squared deviations (dim,), or of products (dim, dim)."""

    # Blocks are merged by the pairwise update (Chan, Golub & LeVeque 1983): a large mean does not lower the precision.

    def __init__(self, dim: int, kind: Literal["mean", "squares", "scatter"]) -> None:
        self.n_rows = 0
        self.mean: Float64Array = np.zeros(dim)
        self.squares: Float64Array = np.zeros((dim, dim) if kind == "scatter" else dim)
        self._kind = kind

    def add(self, vectors: npt.NDArray[Any]) -> None:
        """Add vectors, float (n, dim)."""
        for start in range(0, len(vectors), _STEP_ROWS):
            block = vectors[start : start + _STEP_ROWS].astype(np.float64)
            n_before, self.n_rows = self.n_rows, self.n_rows + len(block)
            block_mean = block.mean(axis=0)
            gap = block_mean - self.mean
            weight = n_before * len(block) / self.n_rows
            if self._kind != "mean":
                block -= block_mean
            if self._kind == "scatter":
                self.squares += block.T @ block
                self.squares += np.outer(gap, gap * weight)
            elif self._kind == "squares":
                self.squares += np.einsum("ij,ij->j", block, block) + gap**2 * weight
            self.mean = self.mean + gap * (len(block) / self.n_rows)


@dataclass(frozen=True, eq=False)
class Scaling:
    """The standardization of vectors: `mean` and `scale`, float32 (dim,) each."""

    mean: Float32Array
    scale: Float32Array

    @property
    def out_dim(self) -> int:
        """The dimensions of the vectors that it gives."""
        return len(self.mean)

    def apply(self, vectors: npt.NDArray[Any]) -> Float32Array:
        """Return (vectors - mean) / scale as a new array, float32 (n_rows, dim)."""
        scaled: Float32Array = np.subtract(vectors, self.mean, dtype=np.float32)
        scaled /= self.scale
        return scaled

    @classmethod
    def identity(cls, dim: int) -> Scaling:
        """Return the scaling that does not change vectors of a width."""
        return cls(np.zeros(dim, np.float32), np.ones(dim, np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """A fitted transform: subtract the mean, then rotate and scale."""

    mean: Float64Array  # (dim,); float64 for precision far from zero
    matrix: Float32Array | None = None  # (dim, out_dim); None for the mean alone

    @property
    def dim(self) -> int:
        """The dimensions of the vectors that it takes."""
        return len(self.mean)

    @property
    def out_dim(self) -> int:
        """The dimensions of the vectors that it gives."""
        return self.dim if self.matrix is None else int(self.matrix.shape[1])

    def apply(self, vectors: npt.NDArray[Any]) -> Float32Array:
        """Return vectors, float (n, dim), as float32 (n, out_dim); the last bit depends on BLAS and the other rows."""
        out = np.empty((len(vectors), self.out_dim), dtype=np.float32)
        matrix = None if self.matrix is None else self.matrix.astype(np.float64)
        for start in range(0, len(vectors), _STEP_ROWS):
            rows = slice(start, start + _STEP_ROWS)
            centred = vectors[rows] - self.mean
            out[rows] = centred if matrix is None else centred @ matrix
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays to save."""
        return {"mean": self.mean} if self.matrix is None else {"mean": self.mean, "matrix": self.matrix}


def fit_scaling(source: Vectors) -> Scaling:
    """Return the mean and population deviation of each dimension, in one float64 pass; constant ones get scale 1."""
    moments = Moments(source.shape[1], "squares")
    for _, vectors in chunks_of(source):
        moments.add(vectors.astype(np.float32, copy=False))
    deviation = np.sqrt(moments.squares / max(1, moments.n_rows))
    constant = deviation <= _ROUNDING * np.abs(moments.mean)
    scale = np.where(constant, 1.0, deviation).astype(np.float32)
    # A deviation too small for float32 would be a division by 0.
    scale[scale == 0] = 1
    return Scaling(moments.mean.astype(np.float32), scale)


def principal_axes(moments: Moments, n_axes: int) -> tuple[Float64Array, Float64Array]:
    """Return the largest variances (n_axes,), falling, and their axes (dim, n_axes); equal vectors are a UserError."""
    variances, axes = np.linalg.eigh(moments.squares / (moments.n_rows - 1))
    if variances[-1] <= (1e-13 * np.abs(moments.mean).max()) ** 2:
        raise UserError(f"all {moments.n_rows} vectors are the same")
    variances, axes = variances[::-1][:n_axes], axes[:, ::-1][:, :n_axes]
    # The sign of an axis is arbitrary: its largest component is made positive.
    largest = axes[np.abs(axes).argmax(axis=0), np.arange(n_axes)]
    return variances, axes * np.where(largest < 0, -1.0, 1.0)


def mean_norms(source: Vectors, scaling: Scaling, n_parts: int) -> list[float]:
    """Return the mean norm of each of `n_parts` equal parts of the vectors, such as layers, after standardization."""
    sums = np.zeros(n_parts)
    for _, vectors in chunks_of(source):
        parts = scaling.apply(vectors).reshape(len(vectors), n_parts, -1)
        sums += np.linalg.norm(parts, axis=2).sum(axis=0, dtype=np.float64)
    found: list[float] = (sums / max(1, source.shape[0])).tolist()
    return found


class Standardized:
    """Other vectors, standardized or projected each time that they are read: float32 `Vectors`."""

    def __init__(self, source: Vectors, scaling: Scaling | Projection) -> None:
        self.shape = source.shape[0], scaling.out_dim
        self.chunks: Sequence[range] = source.chunks
        self._source = source
        self._scaling = scaling

    def read(self, chunk: int) -> Float32Array:
        """Return the standardized vectors of a chunk, float32 (rows of the chunk, out_dim)."""
        return self._scaling.apply(self._source.read(chunk))


def standardized(source: Vectors, scaling: Scaling | Projection) -> Vectors:
    """Return other vectors for a fit that reads them often: a float32 copy of an array, or `Standardized`."""
    if not isinstance(source, ArrayVectors):
        return Standardized(source, scaling)
    scaled = np.empty((source.shape[0], scaling.out_dim), np.float32)
    for rows, vectors in chunks_of(source):
        scaled[rows.start : rows.stop] = scaling.apply(vectors)
    return ArrayVectors(scaled)
