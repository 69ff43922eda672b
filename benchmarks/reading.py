"""Reading a column of vectors into NumPy: bertfeat against pyarrow, polars, a plain read of the files and a copy.

    python -m benchmarks.reading [--quick] [--rounds 5] [--json FILE]

A store of two parts for each type and encoding, 250 MB of vectors of 384 values. All rivals read the same files from
the page cache, in turns (A B A B ...) in one process, with their default number of threads; their results are compared
before. `plain file` reads the bytes of the parts into a new array, `plain file, preallocated` into
one that was written to before; `copy` is `array.copy()` of the vectors. Then 1,000 random rows, one row in
200 that a filter chooses, a pass over batches, and one over batches of 1,024 rows in order or shuffled, whose vectors
are summed. Prints a table and JSON.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.machine import report
from bertfeat import Store, import_vectors, open_store
from bertfeat.plots.tables import markdown_table
from bertfeat.store.selection import FeatureBatch

DIM, N_PARTS, N_TAKEN, FEATURE = 384, 2, 1000, "embedding"

Reader = Callable[[], Any]


def write_store(path: Path, n_bytes: int, dtype: str, encoding: str) -> Store:
    """Write a store of random vectors in `N_PARTS` parts."""
    n_rows = n_bytes // (DIM * np.dtype(dtype).itemsize)
    np.save(path.with_suffix(".npy"), np.random.default_rng(0).normal(size=(n_rows, DIM)).astype(dtype))
    how: dict[str, Any] = {
        "store_dtype": dtype,
        "vector_encoding": encoding,
        "shard_bytes": 11 * n_bytes // (10 * N_PARTS),
    }
    return import_vectors(path.with_suffix(".npy"), path, level="sentence", **how)


def matrix(column: pa.ChunkedArray, dtype: str) -> np.ndarray:
    """Turn an Arrow column into one array (n_rows, dim), in the cheapest way there is."""
    blocks = []
    for chunk in column.chunks:
        if pa.types.is_fixed_size_binary(chunk.type):
            width = chunk.type.byte_width
            flat = np.frombuffer(chunk.buffers()[1], dtype, len(chunk) * DIM, chunk.offset * width)
        else:
            flat = chunk.flatten().to_numpy(zero_copy_only=False)
        blocks.append(flat.reshape(-1, DIM))
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def read_plainly(paths: list[Path], out: np.ndarray | None = None) -> np.ndarray:
    """Read the bytes of files one after the other into an array."""
    if out is None:
        out = np.empty(sum(path.stat().st_size for path in paths), np.uint8)
    start = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while n_read := file.readinto(out[start:].data):
                start += n_read
    return out


def rivals(store: Store, dtype: str) -> dict[str, dict[str, Reader]]:
    """Return the readers, by what they read."""
    paths = [Path(str(store.path)) / part.path for part in store.parts("sentence")]
    vectors, touched = store.numpy("sentence", FEATURE), read_plainly(paths)
    chosen = pa.array(range(0, len(vectors), 200))
    rows = np.random.default_rng(1).choice(len(vectors), N_TAKEN, replace=False)
    dataset = ds.dataset([str(path) for path in paths])

    def by_arrow() -> np.ndarray:
        return matrix(pa.concat_tables([pq.read_table(path, columns=[FEATURE]) for path in paths])[FEATURE], dtype)

    def from_polars(column: pl.Series) -> np.ndarray:
        if column.dtype == pl.Binary:
            inner = pl.Float16 if dtype == "float16" else pl.Float32
            column = column.bin.reinterpret(dtype=pl.Array(inner, DIM), endianness="little")
        return column.to_numpy()

    def filtered(frame: pl.LazyFrame) -> np.ndarray:
        return from_polars(frame.filter(pl.col("doc_id") % 200 == 0).select(FEATURE).collect().to_series())

    def batches_by_arrow() -> int:
        files = [pq.ParquetFile(path) for path in paths]
        batches = (batch for file in files for batch in file.iter_batches(8192, columns=[FEATURE]))
        return sum(len(matrix(pa.chunked_array([batch[FEATURE]]), dtype)) for batch in batches)

    def summed(batches: Iterator[FeatureBatch]) -> int:
        # As 32-bit integers: NumPy adds up half floats so slowly that nothing else would be measured.
        return sum(int(batch.vectors.view(np.uint32).sum(dtype=np.uint32)) for batch in batches) % 2**32

    return {
        "column": {
            "bertfeat": lambda: store.numpy("sentence", FEATURE),
            "pyarrow": by_arrow,
            "pyarrow, not converted": lambda: [pq.read_table(path, columns=[FEATURE]) for path in paths],
            "polars": lambda: from_polars(pl.read_parquet(paths, columns=[FEATURE], glob=False)[FEATURE]),
            "plain file": lambda: read_plainly(paths),
            "plain file, preallocated": lambda: read_plainly(paths, touched),
            "copy": vectors.copy,
        },
        "1000 rows": {
            "bertfeat": lambda: store.take("sentence", FEATURE, rows),
            "bertfeat, newly opened": lambda: open_store(store.path).take("sentence", FEATURE, rows),
            "pyarrow dataset": lambda: matrix(dataset.take(rows, columns=[FEATURE])[FEATURE], dtype),
        },
        "1 row in 200, by a filter": {
            "bertfeat": lambda: filtered(store.scan("sentence", ["doc_id", FEATURE])),
            "polars": lambda: filtered(pl.scan_parquet(paths, glob=False)),
            "pyarrow dataset": lambda: matrix(
                dataset.to_table([FEATURE], filter=ds.field("doc_id").isin(chosen))[FEATURE], dtype
            ),
        },
        "batches": {
            "bertfeat": lambda: sum(len(batch.vectors) for batch in store.batches("sentence", FEATURE)),
            "pyarrow": batches_by_arrow,
        },
        "batches of 1,024, summed": {
            "bertfeat": lambda: summed(store.batches("sentence", FEATURE, batch_size=1024)),
            "bertfeat, shuffled": lambda: summed(store.shuffled("sentence", FEATURE)),
            "bertfeat, shuffled, buffer of 64 MB": lambda: summed(store.shuffled("sentence", FEATURE, buffer="64MB")),
        },
    }


def assert_equal(readers: dict[str, dict[str, Reader]]) -> None:
    """Check that all readers give the same before they are timed."""
    for what, wanted in (
        ("column", ("pyarrow", "polars", "copy")),
        *((what, tuple(readers[what])) for what in ("1000 rows", "1 row in 200, by a filter")),
    ):
        ours = readers[what]["bertfeat"]()
        for name in wanted:
            np.testing.assert_array_equal(ours, readers[what][name](), err_msg=f"{what}: {name}")
    for what in ("batches", "batches of 1,024, summed"):
        assert len({reader() for reader in readers[what].values()}) == 1


def in_turns(readers: dict[str, Reader], rounds: int) -> dict[str, float]:
    """Return the median seconds of each, measured in turns after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in readers}
    for number in range(rounds + 1):
        for name, read in readers.items():
            start = time.perf_counter()
            found = read()
            seconds = time.perf_counter() - start
            del found
            if number:
                times[name].append(seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Write the stores and read them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 MB per store")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    n_bytes = 20_000_000 if arguments.quick else 250_000_000
    # Memory that a process gets for the first time can be many times slower than memory that was used before.
    np.ones(12 * n_bytes, np.uint8)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for encoding in ("array", "binary"):
            for dtype in ("float32", "float16"):
                store = write_store(Path(folder) / f"{encoding}-{dtype}", n_bytes, dtype, encoding)
                readers = rivals(store, dtype)
                assert_equal(readers)
                seconds = {what: in_turns(found, arguments.rounds) for what, found in readers.items()}
                results.append({"encoding": encoding, "dtype": dtype, "n_bytes": n_bytes, "seconds": seconds})
    rows = [
        [f"{one['dtype']} {one['encoding']}", what, name, f"{took * 1e3:.1f}", f"{took / seconds['bertfeat']:.2f}"]
        for one in results
        for what, seconds in one["seconds"].items()
        for name, took in seconds.items()
    ]
    print(markdown_table(["vectors", "what", "reader", "ms", "times bertfeat"], rows))
    report({"rounds": arguments.rounds, "results": results}, arguments.json)


if __name__ == "__main__":
    main()
