"""An index open for searching in this process."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertfeat.ann.description import INDEX, IndexDescription
from bertfeat.ann.exact import EXACT_BYTES, Found, check_request, checked_queries
from bertfeat.ann.folder import check_files, read_index, read_transform
from bertfeat.ann.library import faiss
from bertfeat.ann.search_parameters import (
    comparable,
    core,
    has_ordered_lists,
    is_scan_cheaper,
    lists_needed,
    n_candidates,
    n_compared,
    search_parameters,
    settable,
    stored_vectors,
    widened,
)
from bertfeat.ann.transforms import Transform, prepare
from bertfeat.errors import UserError
from bertfeat.forks import limit_threads
from bertfeat.records import BoolArray, Float32Array, IntArray
from bertfeat.vectors.nearest import Metric, nearest, signed_scores

_BLOCK_BYTES = 32 << 20
_MAX_BLOCK_ROWS = 4096
_FLAT_BYTES = 64 << 20
# Hits that a `Flat` search asks faiss for in addition, to score them again.
_N_MORE = 16
# Rounding errors among the vectors that faiss leaves out, as a multiple of the largest among those that it finds.
_MORE_ROUNDING = 4


class Hits(NamedTuple):
    """The nearest vectors of each query, best first; NaN and -1 where there are fewer hits."""

    scores: Float32Array  # (n_queries, k): cosines, inner products, or true distances
    positions: IntArray  # (n_queries, k)


class _Request(NamedTuple):
    """What a search asks of faiss: parameters by name, their object without a filter, and the queries at once."""

    key: tuple[Any, ...]
    parameters: Mapping[str, float]
    asked: Any
    n_rows: int


class VectorIndex:
    """A faiss index of prepared vectors, with its metric, transform and search parameters; `Flat` scores are exact."""

    def __init__(
        self, index: Any, metric: Metric, transform: Transform | None = None, parameters: Mapping[str, float] = {}
    ) -> None:
        self.index = index
        self.metric = metric
        self.transform = transform
        self.parameters = dict(parameters)
        self.dim = int(index.d) if transform is None else transform.dim
        self._is_flat = isinstance(faiss.downcast_index(index), faiss.IndexFlat)
        self._last: _Request | None = None

    @property
    def n_vectors(self) -> int:
        """The number of vectors."""
        return int(self.index.ntotal)

    def close(self) -> None:
        """Free the memory; the index cannot be searched after this."""
        self.index = None

    def search(self, queries: npt.NDArray[Any], k: int, *, allowed: BoolArray | None = None) -> Hits:
        """Find the k nearest of the `allowed` vectors, bool (n_vectors,), of raw queries, float (n_queries, dim).

        The fewer are allowed, the more of the index is searched, so that recall stays the same.
        """
        limit_threads()
        if allowed is None and queries.shape == (1, self.dim) and 1 <= k <= self.n_vectors and not self._is_flat:
            return self._of_one(queries, k)
        queries = checked_queries(queries, self.dim)
        check_request(k, allowed, self.n_vectors)
        n_allowed = self.n_vectors if allowed is None else int(np.count_nonzero(allowed))
        if n_allowed == self.n_vectors:
            allowed = None
        scores = np.full((len(queries), k), np.nan, dtype=np.float32)
        positions = np.full((len(queries), k), -1, dtype=np.int64)
        n_hits = min(k, n_allowed)
        if not n_hits:
            return Hits(scores, positions)
        selector = None if allowed is None else faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        request = self._request(n_hits, n_allowed)
        for start in range(0, len(queries), request.n_rows):
            rows = slice(start, start + request.n_rows)
            block = prepare(queries[rows], self.transform, self.metric)
            if self._is_flat:
                found, at = self._in_flat(block, n_hits, allowed, selector)
            elif allowed is None:
                hits = self.index.search(block, n_hits, params=request.asked)
                found, at = self._completed(hits, block, None, request.parameters)
            elif has_ordered_lists(self.index):
                found, at = self._in_lists(block, n_hits, allowed, selector)
            else:
                is_scan = is_scan_cheaper(self.index, self.parameters, n_allowed)
                hits = self._ask(block, n_hits, selector, request.parameters, is_scan=is_scan)
                found, at = self._completed(hits, block, selector, request.parameters)
            scores[rows, :n_hits], positions[rows, :n_hits] = found, at
        return Hits(scores, positions)

    def _of_one(self, query: npt.NDArray[Any], k: int) -> Hits:
        """Search without a filter for one query, (1, dim), in fewer calls around that of faiss; hits are the same."""
        block = np.ascontiguousarray(query, dtype=np.float32)
        # NaN and infinity in a query make its length the same; the largest float32 does not.
        length = math.sqrt(np.square(block, dtype=np.float64).sum())
        if not math.isfinite(length):
            checked_queries(block, self.dim)
        if self.transform is not None or self.metric is not Metric.COSINE:
            block = prepare(block, self.transform, self.metric)
        elif length:
            block = (block / np.float64(length)).astype(np.float32)
        request = self._request(k, self.n_vectors)
        raw, positions = self.index.search(block, k, params=request.asked)
        falling = raw[0].tolist()
        if (
            self.metric is Metric.COSINE
            and positions[0, -1] >= 0
            and -1 <= falling[-1] <= falling[0] <= 1
            and all(map(operator.gt, falling, falling[1:]))
        ):
            return Hits(raw, positions)
        return Hits(*self._completed((raw, positions), block, None, request.parameters))

    def _request(self, k: int, n_allowed: int) -> _Request:
        """Return what a search asks; the last one is kept, since queries that come one at a time ask the same."""
        key = k, n_allowed, self.n_vectors, *self.parameters.items()
        last = self._last
        # Threads may search for other numbers of hits at the same time.
        if last is None or last.key != key:
            index, width = self.index, n_candidates(self.index, self.parameters, k) + self.dim
            parameters = widened(index, self.parameters, k, n_allowed)
            n_rows = max(1, min(_MAX_BLOCK_ROWS, _BLOCK_BYTES // (16 * width)))
            self._last = last = _Request(key, parameters, search_parameters(index, parameters, None, k), n_rows)
        return last

    def _in_flat(self, queries: Float32Array, k: int, allowed: BoolArray | None, selector: Any) -> Found:
        """Search a `Flat` index exactly."""
        # faiss computes distances as differences of squares, which round: a few more hits are scored again in float64,
        # and if rounding may have hidden a nearer vector, all are compared.
        # Prepared vectors have unit length where the metric is the cosine.
        metric = Metric.L2 if self.metric is Metric.L2 else Metric.IP
        index = faiss.downcast_index(self.index)
        vectors = stored_vectors(index)
        places = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
        n_wide = min(len(places), k + _N_MORE)
        raw, positions = index.search(queries, n_wide, params=search_parameters(index, {}, selector))
        pairs = np.repeat(np.arange(len(queries)), n_wide), positions.ravel()
        signed = signed_scores(queries, vectors, *pairs, metric, max_bytes=_FLAT_BYTES).reshape(positions.shape)
        order = np.lexsort((positions, -signed.astype(np.float32)), axis=-1)[:, :k]
        keys, raw_keys = (-np.square(signed), -raw) if metric is Metric.L2 else (signed, raw)
        limits = raw_keys[:, -1] + _MORE_ROUNDING * np.abs(keys - raw_keys).max(axis=1)
        doubtful = np.flatnonzero(np.take_along_axis(keys, order[:, -1:], axis=1)[:, 0] <= limits)
        found = np.take_along_axis(positions, order, axis=1)
        scores = np.abs(signed) if metric is Metric.L2 else signed
        scores = np.take_along_axis(scores, order, axis=1).astype(np.float32)
        if n_wide < len(places) and len(doubtful):
            # Without a filter the vectors are not copied.
            cut = np.array_split(places, len(places) // _MAX_BLOCK_ROWS + 1)
            batches = [(vectors, places)] if allowed is None else ((vectors[some], some) for some in cut)
            scores[doubtful], found[doubtful] = nearest(
                batches, queries[doubtful], k, metric, prepare=lambda batch: batch, max_bytes=EXACT_BYTES
            )
        return (np.clip(scores, -1, 1) if self.metric is Metric.COSINE else scores), found

    def _in_lists(self, queries: Float32Array, k: int, allowed: BoolArray, selector: Any) -> Found:
        """Search for each query in as many lists as hold enough allowed vectors."""
        needed = lists_needed(self.index, queries, allowed, n_compared(self.index, self.parameters, k))
        scores = np.empty((len(queries), k), np.float32)
        positions = np.empty((len(queries), k), np.int64)
        for n_probes in np.unique(needed).tolist():
            chosen = np.flatnonzero(needed == n_probes)
            parameters = {**self.parameters, "nprobe": n_probes}
            hits = self._ask(queries[chosen], k, selector, parameters)
            scores[chosen], positions[chosen] = self._completed(hits, queries[chosen], selector, parameters)
        return scores, positions

    def _completed(self, hits: Found, queries: Float32Array, selector: Any, parameters: Mapping[str, float]) -> Found:
        """Return true scores and positions, best first, after missing hits are searched for more thoroughly."""
        # Probed lists may hold too few allowed vectors, a graph may not lead to all, and faiss omits some 4-bit codes.
        raw, positions = hits
        if positions.min(initial=0) < 0:
            most = {name: settable(self.index)[name] for name in parameters.keys() & {"nprobe", "efSearch"}}
            for is_scan in (isinstance(core(self.index), faiss.IndexHNSW), True):
                short = np.flatnonzero((positions < 0).any(axis=1))
                if len(short):
                    k, wide = positions.shape[1], {**parameters, **most}
                    raw[short], positions[short] = self._ask(queries[short], k, selector, wide, is_scan=is_scan)
        if self.metric is Metric.L2:
            raw = np.sqrt(np.maximum(raw, 0))
        elif self.metric is Metric.COSINE:
            raw = np.clip(raw, -1, 1)
        scores = np.where(positions < 0, np.float32(np.nan), raw)
        # NaN sorts last.
        order = np.lexsort((positions, -scores if self.metric.higher_is_better else scores), axis=-1)
        # Faster than np.take_along_axis for a single query.
        rows = np.arange(len(order))[:, None]
        return scores[rows, order], positions[rows, order]

    def _ask(
        self, queries: Float32Array, k: int, selector: Any, parameters: Mapping[str, float], *, is_scan: bool = False
    ) -> Found:
        """Search with faiss; `is_scan` compares with all vectors, where a graph or a refinement stores them."""
        index = self.index
        if is_scan:
            index, queries = comparable(index, queries) or (index, queries)
        try:
            found: Found = index.search(queries, k, params=search_parameters(index, parameters, selector, k))
        except RuntimeError as error:
            if selector is None:
                raise
            raise UserError("this index cannot filter its vectors; build one of Flat, SQ, IVF or HNSW") from error
        return found


def load_index(folder: Path, description: IndexDescription) -> VectorIndex:
    """Open an index for searching, not for adding, with mapped vectors; the digests of all files are checked first."""
    check_files(folder, description)
    index = read_index(folder / INDEX, mmap=True)
    return VectorIndex(index, description.metric, read_transform(folder), description.parameters)
