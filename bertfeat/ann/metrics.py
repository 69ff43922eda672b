"""Names of metrics, and their scores from what faiss computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.errors import UserError
from bertfeat.nearest import Metric

__all__ = ["Metric", "parse_metric", "true_scores"]


def parse_metric(name: str) -> Metric:
    """Return the metric of a name.

    Raises:
        UserError: There is none of that name; the message lists them.
    """
    try:
        return Metric(name)
    except ValueError:
        raise UserError(f"metric {name!r}: unknown; choose one of {', '.join(Metric)}") from None


def true_scores(raw: npt.NDArray[Any], metric: Metric) -> npt.NDArray[np.float32]:
    """Turn what faiss computes on prepared vectors into scores.

    Args:
        raw: float, any shape: inner products, which of unit vectors are cosines; squared distances for L2.
        metric: What the index compares by.

    Returns:
        float32 of the same shape. Rounding carries a squared distance below zero and a cosine past one; these are
        clipped. NaN stays NaN.
    """
    if metric is Metric.L2:
        raw = np.sqrt(np.maximum(raw, 0))
    elif metric is Metric.COSINE:
        raw = np.clip(raw, -1, 1)
    return np.asarray(raw, dtype=np.float32)
