"""Cheap classifiers on frozen features, each loaded on first use: scikit-learn estimators over arrays and streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bertfeat.lazy_names import lazy_names

if TYPE_CHECKING:
    from bertfeat.heads.linear import (
        LinearSVMProbe,
        LogisticRegressionProbe,
        MeanRegressor,
        MultilabelLogisticRegression,
        MultilabelSVM,
        RidgeProbe,
        RidgeRegressor,
    )
    from bertfeat.heads.neighbors import CentroidProbe, KNNProbe, KNNRegressor
    from bertfeat.heads.neural import BiLSTMTagger, LinearTagger, MLPProbe, MLPRegressor, MultilabelMLP

__all__ = [
    "BiLSTMTagger", "CentroidProbe", "KNNProbe", "KNNRegressor", "LinearSVMProbe", "LinearTagger",
    "LogisticRegressionProbe", "MLPProbe", "MLPRegressor", "MeanRegressor", "MultilabelLogisticRegression",
    "MultilabelMLP", "MultilabelSVM", "RidgeProbe", "RidgeRegressor", "base", "bootstrap", "entities", "folder",
    "metrics", "registry", "scores", "sequences", "targets",
]  # fmt: skip


__getattr__ = lazy_names(
    __name__,
    {
        "heads.linear": "LinearSVMProbe LogisticRegressionProbe MeanRegressor MultilabelLogisticRegression "
        "MultilabelSVM RidgeProbe RidgeRegressor",
        "heads.neighbors": "CentroidProbe KNNProbe KNNRegressor",
        "heads.neural": "BiLSTMTagger LinearTagger MLPProbe MLPRegressor MultilabelMLP",
    },
)
