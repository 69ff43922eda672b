"""Costs of a result, beside its score: seconds of computing, and bytes that are kept on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertfeat import Store
from bertfeat.plots.tables import markdown_table


def extraction_seconds(stores: Iterable[Store]) -> float:
    """Return the time that the shards of stores took, in whichever run; loading the model is not in it."""
    return sum(sum(receipt.seconds.values()) for store in stores for receipt in store.receipts())


def feature_bytes(stores: Iterable[Store], spec: Any) -> int:
    """Return the size of the vectors of stores that the feature of a probe reads."""
    # A sum or a mean that is not stored reads all of its layers.
    n_values = int(spec.dim * (len(spec.layers) if spec.is_added_up else 1))
    return sum(store.n_rows(spec.level) for store in stores) * n_values * np.dtype(str(spec.store_dtype)).itemsize


def cost_cells(seconds: float | None, n_bytes: int | None) -> list[str | None]:
    """Return the cells of a table: seconds and MB."""
    return [None if seconds is None else f"{seconds:.1f}", None if n_bytes is None else f"{n_bytes / 1e6:.1f}"]


def cost_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table in Markdown of rows with `features`, `score` as `to_dict` gives it, `seconds` and `n_bytes`."""
    metric = rows[0]["score"]["metric"]
    lines = []
    for row in rows:
        between = row["score"]["intervals"][metric]
        interval = f"{between['low']:.3f} to {between['high']:.3f}"
        costs = cost_cells(row["seconds"], row["n_bytes"])
        lines.append([row["features"], f"{row['score'][metric]:.3f}", interval, *costs])
    return markdown_table(["features", metric.replace("_", " "), "95 % interval", "seconds", "MB"], lines)
