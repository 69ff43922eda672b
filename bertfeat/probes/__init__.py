"""Probing: from stores to fitted probes, their scores and predictions, and sweeps over layers."""

__all__ = [
    "config", "features", "fitted", "fitting", "learningrows", "predictions", "probedescription", "scoring",
    "sweepresult",
]  # fmt: skip
