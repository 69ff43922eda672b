"""Cheap classifiers on frozen features: scikit-learn estimators over arrays and streams, and their scores.

This module imports nothing heavy: a head loads on first use, and torch for neural heads only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertfeat.heads.linear import LinearSVMProbe, LogisticRegressionProbe, RidgeProbe
    from bertfeat.heads.neighbours import CentroidProbe, KNNProbe
    from bertfeat.heads.neural import BiLSTMTagger, LinearTagger, MLPProbe

__all__ = [
    "BiLSTMTagger", "CentroidProbe", "KNNProbe", "LinearSVMProbe", "LinearTagger", "LogisticRegressionProbe",
    "MLPProbe", "RidgeProbe", "base", "bootstrap", "networks", "probefolder", "registry", "scores", "sequences",
]  # fmt: skip


def __getattr__(name: str) -> object:
    from bertfeat.heads.registry import HEADS

    for module, class_name in HEADS.values():
        if class_name == name:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
