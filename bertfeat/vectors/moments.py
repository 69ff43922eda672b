"""Mean and squares of vectors, added up block by block."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertfeat.records import Float64Array

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
