"""Correlations of predicted quantities with true ones, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bertfeat.heads.bootstrap import Interval, resamples
from bertfeat.probes.scoring import ProbeScore
from bertfeat.records import Float64Array

METRICS = ("spearman", "pearson")
_N_RESAMPLES = 1000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Correlations:
    """Pearson's and Spearman's correlation; 0 where all values of one side are equal.

    Attributes:
        n_rows: The rows that are compared.
        spearman: The correlation of ranks, the main score.
        pearson: The correlation of values.
        intervals: Bootstrap intervals by metric; empty if they were not asked for.
        n_without_label: Rows left out because their label is null.
    """

    n_rows: int
    spearman: float
    pearson: float
    intervals: Mapping[str, Interval]
    n_without_label: int = 0

    @property
    def metric(self) -> str:
        """The name of the main score."""
        return METRICS[0]

    @property
    def value(self) -> float:
        """The main score."""
        return self.spearman

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON values."""
        return {"metric": self.metric, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the scores as lines to read."""
        lines = [f"rows      {self.n_rows}", f"Spearman  {self.spearman:.4f}", f"Pearson   {self.pearson:.4f}"]
        if self.n_without_label:
            lines.append(f"rows without a label, left out: {self.n_without_label}")
        if self.intervals:
            some = next(iter(self.intervals.values()))
            lines += ["", f"{some.level:.0%} intervals ({some.n_resamples} resamples of {some.n_units} documents)"]
            lines += [f"{name.capitalize():<9} {i.low:.4f} to {i.high:.4f}" for name, i in self.intervals.items()]
        return lines


#: A score of classes or of quantities.
Score = ProbeScore | Correlations


def correlate(
    true: Float64Array, predicted: Float64Array, *, n_without_label: int = 0, bootstrap: bool
) -> Correlations:
    """Compare predicted quantities of rows with true ones, both (n_rows,)."""
    found = {metric: _correlation(metric, true, predicted) for metric in METRICS}
    intervals = {metric: _interval(metric, true, predicted) for metric in METRICS} if bootstrap else {}
    return Correlations(len(true), **found, intervals=intervals, n_without_label=n_without_label)


def _correlation(metric: str, true: Float64Array, predicted: Float64Array) -> float:
    from scipy.stats import rankdata

    sides = [rankdata(side) if metric == "spearman" else side for side in (true, predicted)]
    centred = [side - side.mean() for side in sides]
    norm = np.linalg.norm(centred[0]) * np.linalg.norm(centred[1])
    return float(centred[0] @ centred[1] / norm) if norm else 0.0


def _interval(metric: str, true: Float64Array, predicted: Float64Array) -> Interval:
    scores = [_correlation(metric, true[rows], predicted[rows]) for rows in resamples(len(true), _N_RESAMPLES, 0)]
    low, high = np.quantile(scores, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(low), float(high), _LEVEL, _N_RESAMPLES, len(true))
