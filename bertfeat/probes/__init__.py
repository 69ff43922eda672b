"""Probing: from stores to fitted probes, their scores and predictions, and sweeps over layers."""

from bertfeat.probes.extras import require

# Every module here builds on scikit-learn; this is the one place that says so where it is missing.
require("sklearn")

__all__ = ["fitted", "fitting", "sweepresult", "sweeps"]
