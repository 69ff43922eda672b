"""The hits of a search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertfeat.records import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The closest vectors of each query, best first.

    `scores` is float32 (n_queries, k), what the metric says: a cosine, an inner product, or a true distance;
    `positions` is int64 (n_queries, k). Where there are fewer hits the score is NaN and the position -1.
    """

    scores: npt.NDArray[np.float32]
    positions: IntArray
