"""Standardisation: the mean and deviation of each dimension, from one pass over the vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.heads.matrices import Matrix, VectorStream, chunks_of, read_chunk
from bertfeat.records import Float32Array
from bertfeat.vectors.moments import Moments

# A deviation below this share of the mean comes from rounding; the dimension is constant.
_ROUNDING = 10 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Scaling:
    """The standardisation of vectors: `mean` and `scale`, float32 (dim,) each."""

    mean: Float32Array
    scale: Float32Array

    def apply(self, vectors: npt.NDArray[Any]) -> Float32Array:
        """Return (vectors - mean) / scale as a new array, float32 (n_rows, dim)."""
        scaled: Float32Array = np.subtract(vectors, self.mean, dtype=np.float32)
        scaled /= self.scale
        return scaled

    @classmethod
    def identity(cls, dim: int) -> Scaling:
        """Return the scaling that does not change vectors of a width."""
        return cls(np.zeros(dim, np.float32), np.ones(dim, np.float32))


def fit_scaling(X: Matrix) -> Scaling:
    """Return the mean and the (population) deviation of each dimension, in one pass and in float64.

    A dimension that is constant gets scale 1.

    Args:
        X: Vectors (n_rows, dim).

    Raises:
        UserError: A vector holds NaN or infinity; the message names the row.
    """
    moments = Moments(X.shape[1], "squares")
    for _, vectors in chunks_of(X):
        moments.add(vectors)
    deviation = np.sqrt(moments.squares / max(1, moments.n_rows))
    constant = deviation <= _ROUNDING * np.abs(moments.mean)
    scale = np.where(constant, 1.0, deviation).astype(np.float32)
    # A deviation too small for float32 would be a division by 0.
    scale[scale == 0] = 1
    return Scaling(moments.mean.astype(np.float32), scale)


class ScaledStream:
    """A stream whose vectors are standardised when they are read, and checked for NaN the first time.

    A fit reads every chunk hundreds of times; a check each time would cost as much as the arithmetic.
    """

    def __init__(self, source: VectorStream, scaling: Scaling) -> None:
        self.shape = source.shape
        self.chunks = source.chunks
        self._source = source
        self._scaling = scaling
        self._checked: set[int] = set()

    def read(self, chunk: int) -> Float32Array:
        """Return the standardised vectors of a chunk, float32 (rows of the chunk, dim).

        Raises:
            UserError: A vector holds NaN or infinity; the message names the row.
        """
        if chunk in self._checked:
            return self._scaling.apply(self._source.read(chunk))
        vectors = read_chunk(self._source, chunk)
        self._checked.add(chunk)
        return self._scaling.apply(vectors)


def standardised(X: Matrix, scaling: Scaling) -> Matrix:
    """Return standardised vectors (n_rows, dim), for a fit that reads them often: a float32 copy, or a stream.

    Raises:
        UserError: A vector in memory holds NaN or infinity; the message names the row.
    """
    if isinstance(X, VectorStream):
        return ScaledStream(X, scaling)
    scaled = np.empty(X.shape, np.float32)
    for rows, vectors in chunks_of(X):
        scaled[rows.start : rows.stop] = scaling.apply(vectors)
    return scaled
