"""Exact search of a store: every row compared with every query, without an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertfeat.ann.budget import CHUNK_BYTES
from bertfeat.ann.exact import exact_search
from bertfeat.ann.transforms import TransformSpec, fit_transform
from bertfeat.records import IntArray
from bertfeat.store.reader import Store, as_store
from bertfeat.vectors.nearest import parse_metric
from bertfeat.vectors.store import StoreVectors


def nearest_rows(
    store: str | Path | Store,
    vectors: npt.NDArray[Any],
    k: int = 10,
    *,
    level: str | None = None,
    feature: str | int | None = None,
    metric: str = "cosine",
    transform: str = "none",
) -> tuple[npt.NDArray[np.float32], IntArray]:
    """Find the k most similar rows of a store for each vector by comparing all rows.

    Rows without a vector are never found. Use `build_index` to search the same store many times.

    Args:
        store: The store, or its folder.
        vectors: float (n, dim), as a store holds them.
        k: The number of hits per vector.
        level: As for `build_index`.
        feature: As for `build_index`.
        metric: As for `build_index`.
        transform: As for `build_index`; it is fitted to the vectors of the store.

    Returns:
        The scores, float32 (n, k), best first, NaN where there are fewer rows; and the rows of the level, int64 (n, k),
        -1 there.

    Raises:
        UserError: The store, a setting or a vector cannot be used; or there are too few rows to fit the transform.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/peps.txt", tmp / "features", levels="sentence", layers="-1")
        >>> scores, rows = nearest_rows(store, store.numpy("sentence", "layer_06")[:2], k=3)
        >>> rows[:, 0].tolist()
        [0, 1]
    """
    opened = as_store(store)
    where = opened.choose_level(level)
    source = StoreVectors(opened, where, opened.choose_feature(where, feature), chunk_bytes=CHUNK_BYTES)
    spec = TransformSpec.parse(transform)
    n_vectors, dim = source.shape
    spec.check(dim, n_vectors)
    scores, positions = exact_search(source, vectors, k, parse_metric(metric), fit_transform(source, spec))
    return scores, np.append(source.rows, -1)[positions]
