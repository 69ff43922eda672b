"""Cheap classifiers on frozen features: scikit-learn estimators over arrays and streams, and their scores."""

__all__ = ["base", "bootstrap", "matrices", "networks", "probedocument", "probefolder", "registry", "scaling", "scores"]
