"""Checks that rivals give the same rows and the same vectors, before their speeds are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import bertfeat
from benchmarks.speed.outputs import Output

TOLERANCE = 1e-4
# Two computations in bfloat16, each with a cosine of at least 0.9995 to that in float32.
LEAST_COSINE = 0.998
_KEYS = {"token": ("doc_id", "token_index", "token"), "word": ("doc_id", "word_index", "word"), "sentence": ("doc_id",)}


def assert_same_files(ours: Path, theirs: Path, output: Output, n_layers: int, *, is_exact: bool = True) -> float:
    """Assert that a store and a peer's file hold the same rows and, up to the tolerance, the same vectors.

    float16 is rounded on each side, so values may lie one step apart where the float32 values straddle. Models that
    compute in bfloat16 (`is_exact=False`) are held to the cosine of each vector.

    Returns:
        The largest difference of two values; with bfloat16, of a cosine from 1.

    Raises:
        AssertionError: The results differ; says where.
    """
    store = bertfeat.open_store(ours)
    table = pq.read_table(theirs)
    for name in _KEYS[output.level]:
        found, expected = store.polars(output.level, [name])[name].to_list(), table[name].to_pylist()
        assert found == expected, f"{theirs.name}: {name} differs"
    worst = 0.0
    for column in output.columns(n_layers):
        a = store.numpy(output.level, column)
        values = table[column].combine_chunks()
        b = values.values.to_numpy(zero_copy_only=False).reshape(a.shape)
        compare = _assert_close if is_exact else _assert_alike
        worst = max(worst, compare(a, b, f"{theirs.name}: {column}"))
    return worst


def assert_same_arrays(ours: Path, theirs: Path) -> float:
    """Assert that two saved arrays hold the same vectors; return the largest difference."""
    return _assert_close(np.load(ours), np.load(theirs), theirs.name)


def _assert_close(a: np.ndarray, b: np.ndarray, what: str) -> float:
    is_half = a.dtype == np.float16
    a, b = a.astype(np.float32), b.astype(np.float32)
    step = np.maximum(np.abs(b), np.float32(2.0**-14)) * np.float32(2.0**-10) if is_half else np.float32(0)
    difference = np.abs(a - b)
    assert a.shape == b.shape, f"{what}: shapes {a.shape} and {b.shape}"
    assert (difference <= TOLERANCE + step).all(), f"{what}: differs by {difference.max()}"
    return float(difference.max())


def _assert_alike(a: np.ndarray, b: np.ndarray, what: str) -> float:
    a, b = a.astype(np.float32), b.astype(np.float32)
    cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    assert (cosines >= LEAST_COSINE).all(), f"{what}: a cosine of {cosines.min()}"
    return float(1 - cosines.min())
