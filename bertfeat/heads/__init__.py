"""Cheap classifiers on frozen features, each loaded on first use: scikit-learn estimators over arrays and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertfeat.lazy_names import lazy_names

if TYPE_CHECKING:
    from bertfeat.heads.linear import LinearSVMProbe, LogisticRegressionProbe, MeanRegressor, RidgeProbe
    from bertfeat.heads.neighbors import CentroidProbe, KNNProbe
    from bertfeat.heads.neural import BiLSTMTagger, LinearTagger, MLPProbe

__all__ = [
    "BiLSTMTagger", "CentroidProbe", "KNNProbe", "LinearSVMProbe", "LinearTagger", "LogisticRegressionProbe",
    "MLPProbe", "MeanRegressor", "RidgeProbe", "base", "bootstrap", "entities", "folder", "registry",
    "scores", "sequences", "targets",
]  # fmt: skip


__getattr__ = lazy_names(
    __name__,
    {
        "heads.linear": "LinearSVMProbe LogisticRegressionProbe MeanRegressor RidgeProbe",
        "heads.neighbors": "CentroidProbe KNNProbe",
        "heads.neural": "BiLSTMTagger LinearTagger MLPProbe",
    },
)
