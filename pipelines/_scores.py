"""Linear heads on features, for classes and quantities, and correlations of quantities with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from bertfeat.heads.registry import make_head
from bertfeat.heads.scores import Interval, resamples
from bertfeat.probes.scoring import ProbeScore, score_predicted
from bertfeat.records import Float32Array, Float64Array

# The strengths of the L2 penalty that are tried on dev: C of the logistic regression, alpha of the ridge regression.
_C = (0.001, 0.01, 0.1, 1.0, 10.0)
_ALPHA = (1.0, 10.0, 100.0, 1000.0, 10000.0)
_N_RESAMPLES = 1000
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Correlations:
    """Spearman's correlation, the main score, and Pearson's; 0 where all values of one side are equal."""

    n_rows: int
    spearman: float
    pearson: float
    intervals: Mapping[str, Interval]
    n_without_label: int
    metric: str = "spearman"

    @property
    def value(self) -> float:
        """The main score."""
        return self.spearman

    def to_dict(self) -> dict[str, Any]:
        """Return the scores as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the scores as lines to read."""
        lines = [f"rows      {self.n_rows}", f"Spearman  {self.spearman:.4f}", f"Pearson   {self.pearson:.4f}"]
        if self.n_without_label:
            lines.append(f"rows without a label, left out: {self.n_without_label}")
        lines += ["", f"{_LEVEL:.0%} intervals ({_N_RESAMPLES} resamples of {self.n_rows} documents)"]
        lines += [f"{name.capitalize():<9} {i.low:.4f} to {i.high:.4f}" for name, i in self.intervals.items()]
        return lines


#: A score of classes or of quantities.
Score = ProbeScore | Correlations


def correlate(
    true: Float64Array, predicted: Float64Array, *, n_without_label: int = 0, bootstrap: bool
) -> Correlations:
    """Compare predicted quantities of rows with true ones, both (n_rows,)."""
    found: dict[str, Any] = {}
    intervals = {}
    for name in ("spearman", "pearson"):
        found[name] = _correlation(name, true, predicted)
        if bootstrap:
            drawn = resamples(len(true), _N_RESAMPLES, 0)
            scores = [_correlation(name, true[rows], predicted[rows]) for rows in drawn]
            low, high = np.quantile(scores, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
            intervals[name] = Interval(float(low), float(high), _LEVEL, _N_RESAMPLES, len(true))
    return Correlations(len(true), **found, intervals=intervals, n_without_label=n_without_label)


def _correlation(name: str, true: Float64Array, predicted: Float64Array) -> float:
    sides = [rankdata(side) if name == "spearman" else side for side in (true, predicted)]
    centered = [side - side.mean() for side in sides]
    norm = np.linalg.norm(centered[0]) * np.linalg.norm(centered[1])
    return float(centered[0] @ centered[1] / norm) if norm else 0.0


def fit_and_score(
    vectors: Mapping[str, Float32Array], labels: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Score]]:
    """Fit a linear head on train with the best penalty on dev; return its name and penalty, and scores of the rest.

    `vectors` (n_pairs, dim) and `labels` (n_pairs,) are those of each split; float64 labels are quantities.
    """
    held = [split for split in vectors if split != "train"]
    if labels["train"].dtype.kind == "f":
        return _regress(vectors, labels, held)
    probe = make_head("logreg", C=list(_C))
    probe.fit(vectors["train"], labels["train"], dev=(vectors["dev"], labels["dev"]))
    scores: dict[str, Score] = {}
    for split in held:
        guesses, everywhere = probe.predict(vectors[split]), np.ones(len(vectors[split]), np.bool_)
        scores[split] = score_predicted(
            labels[split], guesses, probe.classes_, lengths=None, predicted=everywhere, bootstrap=True
        )
    return {"head": "logreg", "C": probe.fit_report()["C"]}, scores


def _regress(
    vectors: Mapping[str, Float32Array], labels: Mapping[str, Any], held: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Score]]:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def score(alpha: float, split: str, *, bootstrap: bool) -> Correlations:
        guesses = heads[alpha].predict(vectors[split]).astype(np.float64)
        return correlate(labels[split], guesses, bootstrap=bootstrap)

    heads = {
        alpha: make_pipeline(StandardScaler(), Ridge(alpha=alpha)).fit(vectors["train"], labels["train"])
        for alpha in _ALPHA
    }
    best = max(_ALPHA, key=lambda alpha: score(alpha, "dev", bootstrap=False).value)
    return {"head": "ridge", "alpha": best}, {split: score(best, split, bootstrap=True) for split in held}
