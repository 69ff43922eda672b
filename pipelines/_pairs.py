"""Features of pairs of texts, and linear heads on them for classes and for quantities."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertfeat.heads.registry import make_head
from bertfeat.pipelines._correlations import Correlations, Score, correlate
from bertfeat.probes.scoring import score_predicted
from bertfeat.records import Float32Array

# The strengths of the L2 penalty that are tried on dev: C of the logistic regression, alpha of the ridge regression.
C = (0.001, 0.01, 0.1, 1.0, 10.0)
ALPHA = (1.0, 10.0, 100.0, 1000.0, 10000.0)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The scores of a head on each split but train, and the strength of its penalty, chosen on dev."""

    head: str
    params: Mapping[str, Any]
    scores: Mapping[str, Score]


def combine(first: Float32Array, second: Float32Array) -> Float32Array:
    """Return u, v, |u - v| and u * v of pairs of vectors: (n_pairs, 4 * dim) from two (n_pairs, dim).

    As Conneau et al. 2017 (arXiv 1705.02364). A text without tokens, whose vector is NaN, counts as zeros.
    """
    u, v = np.nan_to_num(first), np.nan_to_num(second)
    return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


def cosine(first: Float32Array, second: Float32Array) -> Float32Array:
    """Return the cosine of pairs of vectors, (n_pairs, 1); 0 where one is all zeros or NaN."""
    u, v = np.nan_to_num(first), np.nan_to_num(second)
    norms = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
    return np.asarray((u * v).sum(axis=1) / np.where(norms > 0, norms, 1), dtype=np.float32)[:, None]


# feature set -> how the vectors of two texts become one
APART: dict[str, Callable[[Any, Any], Any]] = {"cosine": cosine, "u, v, |u-v|, u*v": combine}


def fit_and_score(vectors: Mapping[str, Float32Array], labels: Mapping[str, Any]) -> Fitted:
    """Fit a linear head on train, choose its penalty on dev, and score dev and test.

    Args:
        vectors: The features of each split, (n_pairs, dim).
        labels: The labels of each split, (n_pairs,): float64 for quantities, else classes.

    Raises:
        UserError: Train has one class alone, or labels of splits differ in kind.
    """
    return (_regress if labels["train"].dtype.kind == "f" else _classify)(vectors, labels)


def _classify(vectors: Mapping[str, Float32Array], labels: Mapping[str, Any]) -> Fitted:
    probe = make_head("logreg", C=list(C))
    probe.fit(vectors["train"], labels["train"], dev=(vectors["dev"], labels["dev"]))
    scores = {
        split: score_predicted(
            labels[split],
            probe.predict(X),
            probe.classes_,
            lengths=None,
            predicted=np.ones(len(X), np.bool_),
            bootstrap=True,
        )
        for split, X in vectors.items()
        if split != "train"
    }
    return Fitted("logreg", {"C": probe.fit_report()["C"]}, scores)


def _regress(vectors: Mapping[str, Float32Array], labels: Mapping[str, Any]) -> Fitted:
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    heads = {
        alpha: make_pipeline(StandardScaler(), Ridge(alpha=alpha)).fit(vectors["train"], labels["train"])
        for alpha in ALPHA
    }

    def score(alpha: float, split: str, *, bootstrap: bool) -> Correlations:
        return correlate(labels[split], heads[alpha].predict(vectors[split]).astype(np.float64), bootstrap=bootstrap)

    best = max(ALPHA, key=lambda alpha: score(alpha, "dev", bootstrap=False).value)
    scores = {split: score(best, split, bootstrap=True) for split in vectors if split != "train"}
    return Fitted("ridge", {"alpha": best}, scores)
