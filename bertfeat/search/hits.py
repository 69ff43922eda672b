"""What a search finds, and what everything that searches can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bertfeat.records import BoolArray, IntArray
from bertfeat.search.metrics import Metric
from bertfeat.search.transforms import Transform


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The closest vectors of each query, best first.

    `scores` is float32 (n_queries, k), what the metric says: a cosine, an inner product, or a true distance;
    `positions` is int64 (n_queries, k). Where there are fewer hits the score is NaN and the position -1.
    """

    scores: npt.NDArray[np.float32]
    positions: IntArray


class SearchesVectors(Protocol):
    """An index open for searching, in this process or in another one."""

    @property
    def n_vectors(self) -> int:
        """How many vectors it holds."""
        ...

    @property
    def dim(self) -> int:
        """The width of the raw vectors that it takes."""
        ...

    @property
    def metric(self) -> Metric:
        """How vectors are compared."""
        ...

    @property
    def transform(self) -> Transform | None:
        """What is done to raw vectors first."""
        ...

    def search(self, queries: npt.NDArray[Any], k: int, *, allowed: BoolArray | None = None) -> Hits:
        """Find the k closest vectors of each query.

        Args:
            queries: float (n_queries, dim), raw.
            k: How many to find, 1 or more.
            allowed: bool (n_vectors,), which may be found; None for all.
        """
        ...

    def close(self) -> None:
        """Give back what it holds; it cannot be searched any more."""
        ...
