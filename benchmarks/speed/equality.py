"""Checks that rivals give the same rows and the same vectors, before their speeds are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import bertfeat
from benchmarks.speed.outputs import Output

TOLERANCE = 1e-4
# Two computations in bfloat16, each with a cosine of at least 0.9995 to that in float32.
LEAST_COSINE = 0.998
_KEYS = {"token": ("doc_id", "token_index", "token"), "word": ("doc_id", "word_index", "word"), "sentence": ("doc_id",)}


def assert_same_files(
    ours: Path, theirs: Path, output: Output, n_layers: int, *, dtype: str = "float32"
) -> dict[str, float]:
    """Assert that a store and a peer's file, or two stores, hold the same rows and, up to the tolerance, vectors.

    float16 is rounded on each side, so values may lie one step apart where the float32 values straddle. Models that
    compute in bfloat16 are held to the cosine of each vector. The cosines of int8 are reported.

    Returns:
        `largest_difference` of two values in float32; else `cosine_least` and `cosine_mean`.

    Raises:
        AssertionError: The results differ; says where.
    """
    store, read = bertfeat.open_store(ours), _reader(theirs, output.level)
    for name in _KEYS[output.level]:
        found = store.polars(output.level, [name])[name].to_list()
        assert found == read(name).tolist(), f"{theirs.name}: {name} differs"
    compare = _assert_close if dtype == "float32" else _assert_alike
    likeness = [
        compare(store.numpy(output.level, column), read(column), f"{theirs.name}: {column}", dtype)
        for column in output.columns(n_layers)
    ]
    worst = {name: min(found[name] for found in likeness) for name in likeness[0]}
    if "largest_difference" in worst:
        worst["largest_difference"] = max(found["largest_difference"] for found in likeness)
    return worst


def _reader(path: Path, level: str) -> Callable[[str], np.ndarray]:
    """Return what reads a column of a peer's file or of a store; vectors as (n_rows, dim)."""
    if path.is_dir():
        store = bertfeat.open_store(path)
        keys = _KEYS[level]
        return lambda name: store.polars(level, [name])[name].to_numpy() if name in keys else store.numpy(level, name)
    table = pq.read_table(path)

    def read(name: str) -> np.ndarray:
        values = table[name].combine_chunks()
        if not isinstance(values, pa.FixedSizeListArray):
            return values.to_numpy(zero_copy_only=False)
        return values.values.to_numpy(zero_copy_only=False).reshape(len(values), -1)

    return read


def assert_same_arrays(ours: Path, theirs: Path) -> dict[str, float]:
    """Assert that two saved arrays hold the same vectors; return the largest difference."""
    return _assert_close(np.load(ours), np.load(theirs), theirs.name)


def _assert_close(a: np.ndarray, b: np.ndarray, what: str, dtype: str = "float32") -> dict[str, float]:  # noqa: ARG001
    is_half = a.dtype == np.float16
    a, b = a.astype(np.float32), b.astype(np.float32)
    step = np.maximum(np.abs(b), np.float32(2.0**-14)) * np.float32(2.0**-10) if is_half else np.float32(0)
    difference = np.abs(a - b)
    assert a.shape == b.shape, f"{what}: shapes {a.shape} and {b.shape}"
    assert (difference <= TOLERANCE + step).all(), f"{what}: differs by {difference.max()}"
    return {"largest_difference": float(difference.max())}


def _assert_alike(a: np.ndarray, b: np.ndarray, what: str, dtype: str) -> dict[str, float]:
    a, b = a.astype(np.float32), b.astype(np.float32)
    cosines = (a * b).sum(axis=1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    assert dtype == "int8" or (cosines >= LEAST_COSINE).all(), f"{what}: a cosine of {cosines.min()}"
    return {"cosine_least": float(cosines.min()), "cosine_mean": float(cosines.mean())}
