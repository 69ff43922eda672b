"""An index open for searching in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from bertfeat.ann.blueprint import metric_type
from bertfeat.ann.filtering import has_ordered_lists, lists_needed
from bertfeat.ann.flat import search_flat
from bertfeat.ann.searchparameters import (
    check_parameters,
    is_scan_cheaper,
    n_compared,
    search_parameters,
    settable,
    widened,
)
from bertfeat.ann.structure import comparable, core
from bertfeat.ann.transforms import Transform, prepare
from bertfeat.ann.vectorparts import checked_queries
from bertfeat.errors import UserError
from bertfeat.nearest import Metric
from bertfeat.records import BoolArray, Float32Array, IntArray

_BLOCK_BYTES = 32 << 20
_MAX_BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The closest vectors of each query, best first.

    `scores` is float32 (n_queries, k), what the metric says: a cosine, an inner product, or a true distance;
    `positions` is int64 (n_queries, k). Where there are fewer hits the score is NaN and the position -1.
    """

    scores: npt.NDArray[np.float32]
    positions: IntArray


class VectorIndex:
    """A faiss index with what belongs to it: how vectors are prepared and compared, and how thoroughly it is searched.

    Scores are those of the metric, as the index knows them: exact for `Flat`, computed from vectors in fewer bits for
    SQ, PQ and RaBitQ, and from what a PCA in the factory string leaves of them. As long as there are k vectors that may
    be found, k are found.

    Args:
        index: The faiss index, of prepared vectors (`transforms.prepare`).
        metric: How vectors are compared.
        transform: The fitted transform of raw vectors, if any.
        parameters: The search parameters that were tuned: `nprobe`, `efSearch`, ...

    Raises:
        UserError: The index does not go with the metric, the transform or the parameters.

    Example:
        >>> index = faiss.index_factory(2, "Flat", faiss.METRIC_INNER_PRODUCT)
        >>> index.add(np.eye(2, dtype=np.float32))
        >>> VectorIndex(index, Metric.COSINE).search(np.array([[3.0, 4.0]]), 1).scores
        array([[0.8]], dtype=float32)
    """

    def __init__(
        self,
        index: Any,
        metric: Metric,
        transform: Transform | None = None,
        parameters: Mapping[str, float] | None = None,
    ) -> None:
        self._index = index
        self.metric = metric
        self.transform = transform
        self.parameters = dict(parameters or {})
        self.dim = int(index.d) if transform is None else transform.dim
        if index.metric_type != metric_type(metric):
            raise UserError(f"the index compares by another metric than {metric}; build it again")
        if transform is not None and transform.out_dim != index.d:
            raise UserError(f"the transform leaves {transform.out_dim} dimensions, the index has {index.d}")
        check_parameters(index, self.parameters)

    @property
    def n_vectors(self) -> int:
        """How many vectors it holds."""
        return int(self.index.ntotal)

    @property
    def index(self) -> Any:
        """The faiss index."""
        if self._index is None:
            raise ValueError("the index is closed")
        return self._index

    def close(self) -> None:
        """Give back the memory; it cannot be searched any more."""
        self._index = None

    def search(self, queries: npt.NDArray[Any], k: int, *, allowed: BoolArray | None = None) -> Hits:
        """Find the k closest vectors of each query.

        Args:
            queries: float (n_queries, dim), raw.
            k: How many to find, 1 or more.
            allowed: bool (n_vectors,), which may be found; None for all. The fewer these are, the more thoroughly the
                index is searched, so that as much of what is there is found.

        Returns:
            The hits, best first, of equal scores the lower position first; where fewer vectors may be found than k, the
            rest is NaN and -1.

        Raises:
            UserError: k is below 1, an array has another shape than these, a query holds NaN or infinity, or the index
                cannot filter.
        """
        queries = checked_queries(queries, self.dim)
        if k < 1:
            raise UserError(f"k is {k}: ask for 1 hit or more")
        selector, n_allowed = self._selector(allowed)
        scores = np.full((len(queries), k), np.nan, dtype=np.float32)
        positions = np.full((len(queries), k), -1, dtype=np.int64)
        n_hits = min(k, n_allowed)
        plain = faiss.downcast_index(self.index)
        step = max(1, min(_MAX_BLOCK_ROWS, _BLOCK_BYTES // (16 * (k + self.dim))))
        for start in range(0, len(queries) if n_hits else 0, step):
            rows = slice(start, start + step)
            block = prepare(queries[rows], self.transform, self.metric)
            if isinstance(plain, faiss.IndexFlat):
                found, at = search_flat(plain, self.metric, block, n_hits, allowed, selector, n_allowed)
                found = np.clip(found, -1, 1) if self.metric is Metric.COSINE else found
            elif allowed is not None and selector is not None and has_ordered_lists(self.index):
                found, at = self._in_lists(block, n_hits, allowed, selector)
            else:
                found, at = self._approximate(block, n_hits, selector, n_allowed)
            scores[rows, :n_hits], positions[rows, :n_hits] = found, at
        return Hits(scores, positions)

    def _selector(self, allowed: BoolArray | None) -> tuple[Any, int]:
        """Return faiss's selector of the vectors that may be found, None for all, and how many these are."""
        if allowed is None:
            return None, self.n_vectors
        if allowed.dtype != np.bool_ or allowed.shape != (self.n_vectors,):
            raise UserError(f"allowed is {allowed.dtype} of shape {allowed.shape}: give bool of ({self.n_vectors},)")
        n_allowed = int(np.count_nonzero(allowed))
        if n_allowed == self.n_vectors:
            return None, n_allowed
        return faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little")), n_allowed

    def _in_lists(
        self, queries: Float32Array, k: int, allowed: BoolArray, selector: Any
    ) -> tuple[Float32Array, IntArray]:
        """Search for each query in as many lists as hold enough that may be found."""
        # As many as are looked at without a filter.
        n_wanted = n_compared(self.index, self.parameters, k)
        needed = lists_needed(self.index, queries, allowed, n_wanted)
        scores = np.empty((len(queries), k), np.float32)
        positions = np.empty((len(queries), k), np.int64)
        for n_probes in np.unique(needed).tolist():
            chosen = np.flatnonzero(needed == n_probes)
            raw, found = self._ask(queries[chosen], k, selector, {**self.parameters, "nprobe": n_probes})
            scores[chosen], positions[chosen] = self._ordered(raw, found)
        return scores, positions

    def _approximate(
        self, queries: Float32Array, k: int, selector: Any, n_allowed: int
    ) -> tuple[Float32Array, IntArray]:
        index, parameters = self.index, widened(self.index, self.parameters, k, n_allowed)
        is_scan = selector is not None and is_scan_cheaper(index, self.parameters, n_allowed)
        raw, positions = self._ask(queries, k, selector, parameters, is_scan=is_scan)
        # Lists that are probed may hold too few that may be found, and a graph may not lead to all.
        short = np.flatnonzero((positions < 0).any(axis=1))
        if len(short):
            most = {name: settable(index)[name] for name in parameters.keys() & {"nprobe", "efSearch"}}
            again = self._ask(queries[short], k, selector, {**parameters, **most}, is_scan=True)
            raw[short], positions[short] = again
        return self._ordered(raw, positions)

    def _ordered(self, raw: Float32Array, positions: IntArray) -> tuple[Float32Array, IntArray]:
        """Return true scores, NaN where nothing was found, and positions, the best first, of equal scores the lower."""
        missing = positions < 0
        scores = np.where(missing, np.float32(np.nan), true_scores(raw, self.metric))
        keys = -scores if self.metric.higher_is_better else scores
        # NaN sorts last.
        order = np.lexsort((positions, keys), axis=-1)
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(positions, order, axis=1)

    def _ask(
        self, queries: Float32Array, k: int, selector: Any, parameters: Mapping[str, float], *, is_scan: bool = False
    ) -> tuple[Float32Array, IntArray]:
        """Ask faiss; `is_scan` compares with all vectors that a graph holds, where it can do that."""
        index = self.index
        if is_scan and isinstance(core(index), faiss.IndexHNSW):
            index, queries = comparable(index, queries) or (index, queries)
        try:
            found: tuple[Float32Array, IntArray] = index.search(
                queries, k, params=search_parameters(index, parameters, selector)
            )
        except RuntimeError as error:
            if selector is None:
                raise
            raise UserError(
                "this index cannot be searched among some of its vectors only; build one of Flat, SQ, IVF or HNSW"
            ) from error
        return found


def true_scores(raw: npt.NDArray[Any], metric: Metric) -> npt.NDArray[np.float32]:
    """Turn what faiss computes on prepared vectors into scores.

    Args:
        raw: float, any shape: inner products, which of unit vectors are cosines; squared distances for L2.
        metric: What the index compares by.

    Returns:
        float32 of the same shape. Rounding carries a squared distance below zero and a cosine past one; these are
        clipped. NaN stays NaN.
    """
    if metric is Metric.L2:
        raw = np.sqrt(np.maximum(raw, 0))
    elif metric is Metric.COSINE:
        raw = np.clip(raw, -1, 1)
    return np.asarray(raw, dtype=np.float32)
