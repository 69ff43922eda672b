"""Probing: from stores to fitted probes, their scores, predictions and comparisons, and sweeps over layers."""

__all__ = [
    "comparison", "config", "description", "features", "fitted", "fitting", "predictions", "rows", "scoring", "slim",
    "sweep", "targets",
]  # fmt: skip
