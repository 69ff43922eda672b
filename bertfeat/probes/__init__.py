"""Probing: from stores to fitted probes, their scores and predictions, and sweeps over layers."""

from bertfeat.errors import require

# Every module here needs scikit-learn; this is the only check for it.
require("sklearn")

__all__ = ["fitted", "fitting", "learningrows", "probedescription", "scoring", "sweepresult", "sweeps", "vectorstream"]
