"""Parquet files of vectors from several writers, and ways to read them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow.parquet as pq

from bertfeat.store.reader import Store

KINDS = [(dtype, encoding) for dtype in ("float16", "float32") for encoding in ("array", "binary")]
# Every way to read vectors of the level "token" of a store with several parts.
READS: dict[str, Callable[[Store], object]] = {
    "numpy": lambda store: store.numpy("token", "layer_04"),
    "torch": lambda store: store.torch("token", "layer_04"),
    "take": lambda store: store.take("token", "mean_last4", [0, 5]),
    "slice": lambda store: store.slice("token", "layer_04", 0, 6),
    "batches": lambda store: list(store.batches("token", "mean_last4")),
    "valid": lambda store: store.valid("token", "layer_04"),
    "polars": lambda store: store.polars("token", ["layer_04"]),
    "arrow": lambda store: store.arrow("token"),
}


def decoded(store: Store, level: str, name: str) -> np.ndarray:
    """Return a stored column as pyarrow alone decodes it; NaN for null vectors."""
    dtype = store.manifest.store_dtype
    dim = store.feature(level, name).dim
    rows = [row for part in store.parts(level) for row in pq.read_table(store.path / part.path)[name].to_numpy()]
    vectors = [
        [np.nan] * dim if row is None else np.frombuffer(row, dtype) if isinstance(row, bytes) else row for row in rows
    ]
    return np.array(vectors, dtype).reshape(-1, dim)
