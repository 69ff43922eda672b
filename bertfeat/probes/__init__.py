"""Probing: from stores to fitted probes, their scores and predictions, and sweeps over layers."""

__all__ = [
    "config", "description", "features", "fitted", "fitting", "predictions", "rows", "scoring", "sweep", "targets",
]  # fmt: skip
