"""Tuning of an index: one half of the queries finds the search parameters, recall is reported on the other half."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertfeat.ann.budget import MemoryPlan
from bertfeat.ann.evaluation import recall_of_each
from bertfeat.ann.exact import EXACT_BYTES, Found, exact_scores, exact_search, sample_positions
from bertfeat.ann.index import VectorIndex
from bertfeat.ann.search_parameters import K, core, settable
from bertfeat.ann.transforms import Transform, prepared_rows
from bertfeat.records import BoolArray, Float32Array, Float64Array, IntArray
from bertfeat.vectors.array import Vectors
from bertfeat.vectors.nearest import Metric

# Standard errors that recall must exceed the target by: that of the other half of the queries misses it once in fifty.
_N_ERRORS = 3
# If recall grows by less over three steps, further steps will not reach the target.
_LEAST_GAIN = 0.001
_N_STEPS = 3
_MAX_STEPS = 4096
_REFINE_FACTORS = (2, 4, 8, 16, 32, 64)
# How many steps more than the fewest lists are tried with a shorter refinement.
_N_WIDER = 2
# A comparison by a refinement takes as long as about 40 others: with SQ8 of 384 dimensions and codes of 192 times 4
# bits 35 to 50 (2 cores of an Intel Xeon).
_COST_OF_REFINED = 40
# Every second query tunes; the others are measured.
_TUNING, _REPORTED = slice(0, None, 2), slice(1, None, 2)

# From queries and k to scores and positions, (n_queries, k) each.
Search = Callable[[npt.NDArray[Any], int], Found]


class HeldOut(NamedTuple):
    """Queries, and their nearest vectors among the others, by exact search."""

    positions: IntArray  # (n_queries,), the places of the queries in the index; -1 for given ones
    vectors: npt.NDArray[Any]  # float (n_queries, dim), raw
    truth: IntArray  # (n_queries, k)
    truth_scores: Float32Array  # (n_queries, k)

    @classmethod
    def of(
        cls,
        source: Vectors,
        vectors: npt.NDArray[Any],
        positions: IntArray | None,
        k: int,
        metric: Metric,
        transform: Transform | None,
        max_bytes: int = EXACT_BYTES,
    ) -> Self:
        """Search for the k nearest vectors of queries in `max_bytes`; None for positions of given ones."""
        own = np.full(len(vectors), -1) if positions is None else positions
        scores, truth = exact_search(source, vectors, k, metric, transform, exclude=own, max_bytes=max_bytes)
        return cls(own, vectors, truth, scores)

    @classmethod
    def drawn(cls, source: Vectors, plan: MemoryPlan, transform: Transform | None, given: Float32Array | None) -> Self:
        """Return random queries, and after them the given ones, float32 (n_given, dim); the source is read twice."""
        # Not the vectors that training draws with the same seed.
        own = sample_positions(source.shape[0], plan.settings.n_queries, plan.settings.seed + 1)
        vectors = prepared_rows(source, own, None, Metric.IP)
        if given is not None:
            vectors = np.concatenate([vectors, given])
            own = np.concatenate([own, np.full(len(given), -1)])
        return cls.of(source, vectors, own, K, plan.settings.metric, transform, plan.exact_bytes)

    def only(self, chosen: slice | BoolArray) -> HeldOut:
        """Return some of the queries."""
        return HeldOut(**{name: array[chosen] for name, array in self._asdict().items()})

    def found_by(self, search: Search, k: int) -> IntArray:
        """Return the k nearest vectors that a search finds without the queries themselves, int64 (n_queries, k)."""
        if (self.positions < 0).all():
            return search(self.vectors, k)[1]
        positions = search(self.vectors, k + 1)[1]
        # The query itself goes last and is cut off; if it was not found, the last hit is.
        order = np.argsort(positions == self.positions[:, None], axis=1, kind="stable")[:, :k]
        return np.take_along_axis(positions, order, axis=1)

    def recalls(self, found: IntArray, scores: Float32Array | None, metric: Metric) -> Float64Array:
        """Return `recall_of_each` of what was found; without its scores, a lower bound."""
        return recall_of_each(found, scores, self.truth, self.truth_scores, metric)


def measured_recall(
    search: Search, source: Vectors, held: HeldOut, k: int, metric: Metric, transform: Transform | None
) -> tuple[float, float]:
    """Return the recall@k of a search for queries, and its seconds; the source is read once."""
    started = time.perf_counter()
    found = held.found_by(search, k)
    seconds = max(time.perf_counter() - started, 1e-9)
    scores = exact_scores(source, held.vectors, found, metric, transform)
    return float(held.recalls(found, scores, metric).mean()), seconds


def tune(index: VectorIndex, held: HeldOut, source: Vectors, target: float) -> dict[str, Any]:
    """Give an index the parameters that are just thorough enough, or find most; return measures as JSON values."""
    own, given = held.only(held.positions >= 0), held.only(held.positions < 0)
    climb = _Climb(index, (given if len(given.positions) else own).only(_TUNING), source, target)
    index.parameters = climb.best()
    values = _measured(index, own.only(_REPORTED), source)
    if len(given.positions):
        values["given"] = _measured(index, given.only(_REPORTED), source)
    return {
        **values,
        "recall_target": target,
        "target_met": reached(values) >= target,
        "parameters": dict(index.parameters),
        "tried": [{**tried.parameters, "recall_at_10": float(tried.recalls.mean())} for tried in climb.tries],
    }


def reached(measured: Mapping[str, Any]) -> float:
    """Return the recall@10 that counts among the values of `tune`: that of given queries, or of the index's own."""
    return float(measured.get("given", measured)["recall_at_10"] or 0)


def _measured(index: VectorIndex, held: HeldOut, source: Vectors) -> dict[str, Any]:
    recall, seconds = measured_recall(index.search, source, held, K, index.metric, index.transform)
    n_queries = len(held.positions)
    return {"recall_at_10": recall, "n_queries": n_queries, "queries_per_s": round(n_queries / seconds, 1)}


@dataclass(slots=True, eq=False)
class _Try:
    """Parameters, what they found, and the recall of each query: a lower bound until hits are scored exactly."""

    parameters: dict[str, float]
    found: IntArray
    recalls: Float64Array
    is_exact: bool = False

    def is_enough(self, target: float) -> bool:
        error = self.recalls.std() / math.sqrt(len(self.recalls))
        return bool(self.recalls.mean() - _N_ERRORS * error >= target)


@dataclass(slots=True, eq=False)
class _Climb:
    """A search for parameters, from the fastest on."""

    index: VectorIndex
    held: HeldOut
    source: Vectors
    target: float
    tries: list[_Try] = field(default_factory=list)

    def best(self) -> dict[str, float]:
        """Return the parameters that are just enough, or, if none are enough, those that find most."""
        if not settable(self.index.index):
            return {}
        rows = _rows(self.index.index)
        enough = self._first_enough(rows)
        if enough is None:
            # The first of equal ones is the fastest.
            return max(self.tries, key=lambda attempt: attempt.recalls.mean()).parameters
        for parameters in _cheaper(self.index.index, rows, enough):
            self._try(parameters)
        return self._fastest() or enough

    def _first_enough(self, rows: list[dict[str, float]]) -> dict[str, float] | None:
        """Try one row after the other, until one is enough or recall no longer grows."""
        for parameters in rows:
            self._try(parameters)
            if self.tries[-1].is_enough(self.target) and (enough := self._fastest()):
                return enough
            gained = [attempt.recalls.mean() for attempt in self.tries]
            if len(gained) > 2 * _N_STEPS and gained[-1] - gained[-1 - _N_STEPS] < _LEAST_GAIN:
                break
        return self._fastest()

    def _try(self, parameters: dict[str, float]) -> None:
        self.index.parameters = parameters
        found = self.held.found_by(self.index.search, K)
        self.tries.append(_Try(parameters, found, self.held.recalls(found, None, self.index.metric)))

    def _fastest(self) -> dict[str, float] | None:
        """Return the fastest parameters that reach the target recall, if vectors as close as the truth count too."""
        if new := [attempt for attempt in self.tries if not attempt.is_exact]:
            found = np.concatenate([attempt.found for attempt in new], axis=1)
            scores = exact_scores(self.source, self.held.vectors, found, self.index.metric, self.index.transform)
            for attempt, its_scores in zip(new, np.split(scores, len(new), axis=1), strict=True):
                attempt.recalls = self.held.recalls(attempt.found, its_scores, self.index.metric)
                attempt.is_exact = True
        passed = [attempt.parameters for attempt in self.tries if attempt.is_enough(self.target)]
        return min(passed, key=lambda parameters: _cost(self.index.index, parameters), default=None)


def _rows(index: Any) -> list[dict[str, float]]:
    """Return search parameters to try, from the fastest to the most thorough, all with the longest refinement."""
    inner, names = core(index), settable(index)
    if "nprobe" in names:
        rows: list[dict[str, float]] = [{"nprobe": n} for n in _steps(1, inner.nlist)]
    elif "efSearch" in names:
        rows = [{"efSearch": n} for n in _steps(16, max(16, min(_MAX_STEPS, inner.ntotal)))]
    else:
        rows = [{}]
    if "quantizer_efSearch" in names:
        # The graph of lists must give the nearest lists, not only the wanted number.
        rows = [{**row, "quantizer_efSearch": min(inner.nlist, max(32, 2 * row["nprobe"]))} for row in rows]
    return [{**row, "k_factor_rf": _REFINE_FACTORS[-1]} for row in rows] if "k_factor_rf" in names else rows


def _cheaper(index: Any, rows: list[dict[str, float]], enough: dict[str, float]) -> list[dict[str, float]]:
    """Return parameters that take less time than the row that is enough: some more lists, a shorter refinement."""
    if "k_factor_rf" not in enough:
        return []
    at = rows.index(enough)
    some = [{**row, "k_factor_rf": factor} for row in rows[at : at + _N_WIDER + 1] for factor in _REFINE_FACTORS]
    return [row for row in some if _cost(index, row) < _cost(index, enough)]


def _cost(index: Any, parameters: Mapping[str, float]) -> float:
    """Estimate how long a search takes, in comparisons; a measured time would choose otherwise in each build."""
    inner = core(index)
    cost = _COST_OF_REFINED * K * parameters.get("k_factor_rf", 0)
    if "nprobe" in parameters:
        return float(cost + parameters["nprobe"] * inner.ntotal / inner.nlist)
    return float(cost + parameters.get("efSearch", 0))


def _steps(low: int, high: int) -> list[int]:
    """Return whole numbers from `low` to `high`, two per octave: 1, 2, 3, 4, 6, 8, 12, ..."""
    octaves = itertools.takewhile(lambda n: n <= high, (low << i for i in itertools.count()))
    numbers = {n for octave in octaves for n in (octave, octave * 3 // 2)} | {high}
    return sorted(n for n in numbers if n <= high)
