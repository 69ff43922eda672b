"""Vectors of probes: labelled noisy rows, and an array as a stream."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import make_classification

from bertfeat.vectors.array import check_finite


def noisy_rows(n_classes: int = 3, dtype: npt.DTypeLike = np.float32) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return 300 vectors, 20 wide, and their labels; a fifth of the labels is random."""
    x, y = make_classification(
        n_samples=300, n_features=20, n_informative=8, n_classes=n_classes, flip_y=0.2, random_state=0
    )
    return x.astype(dtype), np.array(["ant", "bee", "cat", "dog"])[y]


class ArrayStream:
    """`Vectors` over an array (n_rows, dim), read in chunks and checked each time.

    Args:
        array: The vectors.
        borders: The rows at which a chunk ends and the next one starts, ascending; 0 and n_rows may be left out.
    """

    def __init__(self, array: npt.NDArray[Any], borders: Sequence[int] = ()) -> None:
        self.shape: tuple[int, int] = (array.shape[0], array.shape[1])
        ends = [0, *(border for border in borders if 0 < border < len(array)), len(array)]
        self.chunks = [range(start, stop) for start, stop in itertools.pairwise(ends)]
        self._array = array

    def read(self, chunk: int) -> npt.NDArray[np.float32]:
        """Return a copy of a chunk's vectors."""
        rows = self.chunks[chunk]
        vectors = self._array[rows.start : rows.stop].copy()
        check_finite(vectors, rows)
        return vectors
