"""How thoroughly an index must be searched to find enough: measured, by queries whose closest vectors are known.

The queries are vectors of the index, each leaving itself out. One half of them finds the search parameters; recall is
reported on the other half, which these have not seen.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bertfeat.ann.evaluation import recall_of_each
from bertfeat.ann.exact import exact_scores, exact_search
from bertfeat.ann.indextraining import rows_at
from bertfeat.ann.searchparameters import settable
from bertfeat.ann.structure import core
from bertfeat.ann.transforms import Transform
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.ann.vectorparts import VectorParts, sample_positions
from bertfeat.nearest import Metric
from bertfeat.records import Float32Array, Float64Array, IntArray

K = 10

# A parameter is taken when recall, less so many standard errors of its mean, meets the target: of the other half of the
# queries, recall will then be below it once in fifty times.
_N_ERRORS = 3
# Recall that grows by less over three steps will not get anywhere.
_LEAST_GAIN = 0.001
_N_STEPS = 3
_MAX_STEPS = 4096
_REFINE_FACTORS = (4, 16, 64)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Queries, and their closest vectors among the others, by exact search.

    `positions` int64 (n_queries,) are their own places in the index, `vectors` float32 (n_queries, dim) the raw
    vectors; `truth` int64 (n_queries, K) and `truth_scores` float32 (n_queries, K) are their closest ones.
    """

    positions: IntArray
    vectors: Float32Array
    truth: IntArray
    truth_scores: Float32Array

    @classmethod
    def of(
        cls,
        source: VectorParts,
        metric: Metric,
        transform: Transform | None = None,
        *,
        n_queries: int = 2000,
        seed: int = 0,
        max_bytes: int = 256 << 20,
    ) -> Self:
        """Choose queries from a source by lot, and find their closest vectors; the source is read twice."""
        # Other vectors than those that training draws by the same seed.
        positions = sample_positions(source.n_vectors, n_queries, seed + 1)
        vectors = rows_at(source, positions)
        scores, truth = exact_search(source, vectors, K, metric, transform, exclude=positions, max_bytes=max_bytes)
        return cls(positions, vectors, truth, scores)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Make the queries of saved arrays."""
        return cls(**arrays)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays to save."""
        names = ("positions", "vectors", "truth", "truth_scores")
        return {name: getattr(self, name) for name in names}

    def half(self, which: int) -> HeldOut:
        """Return every other query, from the first or the second on."""
        return HeldOut(**{name: array[which::2] for name, array in self.to_arrays().items()})


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was measured.

    Attributes:
        parameters: The search parameters that were found.
        recall: Recall@10 on queries that they were not found by.
        target: The recall that was asked for.
        n_queries: How many queries recall was measured on.
        queries_per_s: How many of these were answered in a second, all given at once.
        tried: The parameters tried, in order, with their recall on the other queries; empty if there are none to set.
    """

    parameters: dict[str, float]
    recall: float
    target: float
    n_queries: int
    queries_per_s: float
    tried: list[dict[str, Any]] = field(default_factory=list)

    @property
    def target_met(self) -> bool:
        """Whether searches find as much as was asked for."""
        return self.recall >= self.target

    def to_json(self) -> dict[str, Any]:
        """Return what was measured as plain JSON values."""
        return {
            "recall_at_10": self.recall,
            "recall_target": self.target,
            "target_met": self.target_met,
            "n_queries": self.n_queries,
            "queries_per_s": round(self.queries_per_s, 1),
            "parameters": dict(self.parameters),
            "tried": self.tried,
        }


def tune(index: VectorIndex, held: HeldOut, source: VectorParts, target: float) -> Tuning:
    """Find the search parameters that are just thorough enough, and measure them; `index` gets them.

    Args:
        index: The index of all vectors of the source.
        held: Queries.
        source: The vectors, read a few times to score what was found.
        target: The recall@10 to reach.

    Returns:
        What was measured. Where nothing reaches the target, it is the parameters that find most.
    """
    search = _Search(index, held.half(0), source, target)
    index.parameters = search.best()
    half = held.half(1)
    started = time.perf_counter()
    found = _search_others(index, half)
    seconds = max(time.perf_counter() - started, 1e-9)
    scores = exact_scores(source, half.vectors, found, index.metric, index.transform)
    recall = float(_recalls(found, scores, half, index.metric).mean())
    return Tuning(index.parameters, recall, target, len(found), len(found) / seconds, search.tried())


@dataclass(slots=True, eq=False)
class _Try:
    """Parameters, what they found, and recall of each query: likely, until the hits have been scored exactly."""

    parameters: dict[str, float]
    found: IntArray
    recalls: Float64Array
    is_exact: bool = False

    def is_enough(self, target: float) -> bool:
        error = self.recalls.std() / math.sqrt(len(self.recalls))
        return bool(self.recalls.mean() - _N_ERRORS * error >= target)


class _Search:
    """Tries search parameters, from the fastest on."""

    def __init__(self, index: VectorIndex, held: HeldOut, source: VectorParts, target: float) -> None:
        self._index = index
        self._held = held
        self._source = source
        self._target = target
        self._tries: list[_Try] = []

    def best(self) -> dict[str, float]:
        """Return the parameters that are just enough, or, if none are, those that find most."""
        if not settable(self._index.index):
            return {}
        for ladder in _ladders(self._index.index):
            n_before = len(self._tries)
            for parameters in ladder:
                self._try(parameters)
                if self._tries[-1].is_enough(self._target):
                    self._score_exactly()
                    if enough := self._enough():
                        return enough
                if _is_flat([attempt.recalls.mean() for attempt in self._tries[n_before:]]):
                    break
            self._score_exactly()
            if enough := self._enough():
                return enough
        # Of equal ones the first, which is the fastest.
        return max(self._tries, key=lambda attempt: attempt.recalls.mean()).parameters

    def tried(self) -> list[dict[str, Any]]:
        """Return what was tried, as plain JSON values."""
        return [{**attempt.parameters, "recall_at_10": float(attempt.recalls.mean())} for attempt in self._tries]

    def _try(self, parameters: dict[str, float]) -> None:
        self._index.parameters = parameters
        found = _search_others(self._index, self._held)
        # Without scores, vectors as close as those of the truth do not count: what is found is this much, or more.
        self._tries.append(_Try(parameters, found, _recalls(found, None, self._held, self._index.metric)))

    def _enough(self) -> dict[str, float] | None:
        passed = (attempt.parameters for attempt in self._tries if attempt.is_exact and attempt.is_enough(self._target))
        return next(passed, None)

    def _score_exactly(self) -> None:
        """Count vectors that are as close as those of the truth as well, by exact scores; the source is read once."""
        new = [attempt for attempt in self._tries if not attempt.is_exact]
        if not new:
            return
        all_found = np.concatenate([attempt.found for attempt in new], axis=1)
        scores = exact_scores(self._source, self._held.vectors, all_found, self._index.metric, self._index.transform)
        for attempt, its_scores in zip(new, np.split(scores, len(new), axis=1), strict=True):
            attempt.recalls = _recalls(attempt.found, its_scores, self._held, self._index.metric)
            attempt.is_exact = True


def _ladders(index: Any) -> Iterator[list[dict[str, float]]]:
    """Yield rows of search parameters to try, each from the fastest to the most thorough."""
    inner, names = core(index), settable(index)
    if "nprobe" in names:
        rows: list[dict[str, float]] = [{"nprobe": n} for n in _steps(1, inner.nlist)]
    elif "efSearch" in names:
        rows = [{"efSearch": n} for n in _steps(16, max(16, min(_MAX_STEPS, inner.ntotal)))]
    else:
        rows = [{}]
    if "quantizer_efSearch" in names:
        # The graph of lists must give the closest ones, not only as many as are wanted.
        rows = [{**row, "quantizer_efSearch": min(inner.nlist, max(32, 2 * row["nprobe"]))} for row in rows]
    if "k_factor_rf" not in names:
        yield rows
        return
    for factor in _REFINE_FACTORS:
        yield [{**row, "k_factor_rf": factor} for row in rows]


def _steps(low: int, high: int) -> list[int]:
    """Return whole numbers from `low` to `high`, two to an octave: 1, 2, 3, 4, 6, 8, 12, ..."""
    octaves = itertools.takewhile(lambda n: n <= high, (low << i for i in itertools.count()))
    numbers = {n for octave in octaves for n in (octave, octave * 3 // 2)} | {high}
    return sorted(n for n in numbers if n <= high)


def _is_flat(recalls: list[float]) -> bool:
    return len(recalls) > 2 * _N_STEPS and recalls[-1] - recalls[-1 - _N_STEPS] < _LEAST_GAIN


def _search_others(index: VectorIndex, held: HeldOut) -> IntArray:
    """Search for the closest vectors of queries that are in the index themselves, int64 (n_queries, K)."""
    positions = index.search(held.vectors, K + 1).positions
    is_self = positions == held.positions[:, None]
    # Itself last; where it was not found, the one too many is.
    order = np.argsort(is_self, axis=1, kind="stable")[:, :K]
    return np.take_along_axis(positions, order, axis=1)


def _recalls(found: IntArray, scores: Float32Array | None, held: HeldOut, metric: Metric) -> Float64Array:
    """Return recall@10 of each query, float64 (n_queries,)."""
    if scores is None:
        return recall_of_each(found, held.truth, K)
    return recall_of_each(found, held.truth, K, found_scores=scores, truth_scores=held.truth_scores, metric=metric)
