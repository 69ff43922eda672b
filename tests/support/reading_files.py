"""Parquet files of vectors from several writers, and ways to read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from bertfeat.choices import Combine, Level, StoreDtype, VectorEncoding
from bertfeat.durable.files import digest_of
from bertfeat.records import Column, FeatureColumn, LevelSchema, PartInfo
from bertfeat.store.part_reader import KeptGroups
from bertfeat.store.reader import Store
from bertfeat.store.selection import read_vectors
from bertfeat.store.vector_layout import VectorLayout
from bertfeat.store.vectors import Piece, StoredPart, VectorSource

NAME = "layer_06"


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
    rows = [row for part in store.parts(level) for row in pq.read_table(store.path / part.path)[name].to_pylist()]
    vectors = [
        [np.nan] * dim if row is None else np.frombuffer(row, dtype) if isinstance(row, bytes) else row for row in rows
    ]
    return np.array(vectors, dtype).reshape(-1, dim)


def layout(dtype: str, encoding: str) -> VectorLayout:
    return VectorLayout(StoreDtype(dtype), VectorEncoding(encoding))


def values(n_rows: int, dim: int, dtype: str) -> np.ndarray:
    """Return vectors (n_rows, dim) of random bits, with NaNs, infinities and bytes that look like a header."""
    bits = np.random.default_rng(n_rows * 1000 + dim).integers(0, 256, n_rows * dim * np.dtype(dtype).itemsize, "u1")
    return bits.view(dtype).reshape(n_rows, dim)


def table(vectors: np.ndarray, encoding: str) -> pa.Table:
    """Return a table of a number, a text and the vectors: as in a part, the vectors come last."""
    n_rows, dim = vectors.shape
    if encoding == "binary":
        column = pa.Array.from_buffers(pa.binary(dim * vectors.itemsize), n_rows, [None, pa.py_buffer(vectors)])
    else:
        element = pa.field("element", pa.from_numpy_dtype(vectors.dtype), nullable=False)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=pa.list_(element, dim))
    texts = pa.array([f"text {row}" for row in range(n_rows)], pa.large_string())
    fields = [pa.field("row", pa.int64(), nullable=False), pa.field("text", texts.type), pa.field(NAME, column.type)]
    return pa.Table.from_arrays([pa.array(np.arange(n_rows)), texts, column], schema=pa.schema(fields))


def write_arrow(path: Path, data: pa.Table, **options: Any) -> Path:
    pq.write_table(data, path, **{"compression": "none", "use_dictionary": False, "write_statistics": False, **options})
    return path


def write_polars(path: Path, data: pa.Table, **options: Any) -> Path:
    frame = pl.from_arrow(data)
    frame.write_parquet(
        path, **{"compression": "uncompressed", "statistics": False, "arrow_schema": data.schema, **options}
    )
    return path


def stored(dim: int) -> VectorSource:
    return VectorSource(dim, (Piece(NAME, 0, dim),), (6,), Combine.NONE)


def part_of(path: Path, dtype: str, encoding: str, dim: int) -> StoredPart:
    """Describe a file as a manifest for exactly this file would."""
    try:
        with pq.ParquetFile(path) as file:
            names, n_rows = file.schema_arrow.names, file.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError):
        names, n_rows = [NAME], 1
    columns = tuple(Column(name, "string") for name in names if name != NAME)
    vectors = FeatureColumn(NAME, (6,), "none", dim)
    schema = LevelSchema(Level.TOKEN, columns, (vectors,))
    info = PartInfo(Level.TOKEN, path.name, n_rows, path.stat().st_size, digest_of(path))
    return StoredPart(path, info, schema, layout(dtype, encoding))


def by_store(path: Path, dtype: str, encoding: str, dim: int) -> np.ndarray:
    """Read as a store reads a part without runs in the manifest."""
    part = part_of(path, dtype, encoding, dim)
    return read_vectors([part], range(part.info.n_rows), stored(dim), KeptGroups())


def same(first: np.ndarray, second: np.ndarray) -> bool:
    """Compare bit by bit; all NaNs are equal, since a null has no bits."""
    bits = f"u{first.itemsize}"
    is_nan = np.isnan(first) & np.isnan(second)
    return first.shape == second.shape and bool(((first.view(bits) == second.view(bits)) | is_nan).all())
