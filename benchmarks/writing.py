"""The cost of writing: bertfeat's commit of a shard against writers and codecs, on real features of MiniLM.

    python -m benchmarks.writing [--quick] [--rounds 3] [--json FILE]

The features are those of benchmarks/data/ewt.txt.gz at token level, the last four layers concatenated, as float32 and
as float16. Each rival writes them to a new file in the page cache, in turns (A B A B ...); CPU time is that of all
threads of the process. bertfeat's commit also checks every value, computes the digest and syncs. The files are
read back and asserted to be equal. `share of a run` holds the CPU time of the commit against that of the extraction
that made the features. Then the columns before the vectors, by codec. Prints a table and JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import bertfeat
from benchmarks.machine import describe_machine
from benchmarks.reading import plan_store
from bertfeat.choices import Level
from bertfeat.records import FeatureColumn, LevelSchema, LevelTable, ShardResult
from bertfeat.store.writer import open_for_writing

CORPUS = Path(__file__).parent / "data" / "ewt.txt.gz"
FEATURE = "concat_last4"
ROW_GROUP_BYTES = 32 << 20

Writer = Callable[[Path], None]


def extract(folder: Path, n_sentences: int) -> tuple[np.ndarray, pl.DataFrame, float]:
    """Return the features of the corpus, float32 (n_tokens, 1536), the columns before them, and the CPU seconds."""
    lines = gzip.decompress(CORPUS.read_bytes()).decode().splitlines()[:n_sentences]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    start = time.process_time()
    store = bertfeat.extract(
        folder / "corpus.txt",
        folder / "features",
        model="minilm",
        levels=["token"],
        combine="concat",
        store_dtype="float32",
        workers=1,
    )
    seconds = time.process_time() - start
    columns = store.polars("token", [column.name for column in store.schema("token").columns])
    return store.numpy("token", FEATURE), columns, seconds


def arrow_table(vectors: np.ndarray, encoding: str) -> pa.Table:
    """Lay vectors out in Arrow, without a copy."""
    if encoding == "binary":
        kind = pa.binary(vectors.shape[1] * vectors.itemsize)
        column = pa.Array.from_buffers(kind, len(vectors), [None, pa.py_buffer(vectors)])
    else:
        element = pa.field("element", pa.from_numpy_dtype(vectors.dtype), nullable=False)
        flat = pa.array(vectors.reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(element, vectors.shape[1]))
    return pa.table({FEATURE: column})


def writers(vectors: np.ndarray) -> dict[str, Writer]:
    """Return the writers."""
    n_rows = ROW_GROUP_BYTES // (vectors.shape[1] * vectors.itemsize)
    found: dict[str, Writer] = {}
    for encoding in ("array", "binary"):
        table = arrow_table(vectors, encoding)
        leaf = FEATURE if encoding == "binary" else f"{FEATURE}.list.element"
        for codec in ("none", "lz4", "zstd"):

            def by_pyarrow(path: Path, table: pa.Table = table, codec: str = codec) -> None:
                pq.write_table(table, path, compression=codec, row_group_size=n_rows, use_dictionary=False)

            found[f"pyarrow {encoding}, {codec}"] = by_pyarrow

        def split(path: Path, table: pa.Table = table, leaf: str = leaf) -> None:
            options: dict[str, Any] = {"use_dictionary": False, "column_encoding": {leaf: "BYTE_STREAM_SPLIT"}}
            pq.write_table(table, path, compression="zstd", row_group_size=n_rows, **options)

        # DuckDB and some versions of polars cannot read float16 in this encoding.
        if encoding == "array" and vectors.dtype == np.float32:
            found["pyarrow array, zstd, byte stream split"] = split
    frame = pl.DataFrame(pl.from_arrow(arrow_table(vectors, "array")))
    for codec in ("uncompressed", "lz4", "zstd"):

        def by_polars(path: Path, codec: Any = codec) -> None:
            frame.write_parquet(path, compression=codec, row_group_size=n_rows, statistics=False)

        found[f"polars array, {codec}"] = by_polars
    for encoding in ("array", "binary"):

        def by_bertfeat(path: Path, encoding: str = encoding) -> None:
            commit(path, vectors, encoding)

        found[f"bertfeat {encoding}, a shard's commit"] = by_bertfeat
    return found


def commit(path: Path, vectors: np.ndarray, encoding: str) -> None:
    """Write vectors as a store of one shard."""
    plan = plan_store(len(vectors), str(vectors.dtype), encoding)
    schema = plan.schemas[Level.SENTENCE]
    feature = FeatureColumn(FEATURE, (3, 4, 5, 6), "concat", vectors.shape[1])
    plan = replace(plan, shards=plan.shards[:1])
    plan = replace(plan, schemas={Level.SENTENCE: LevelSchema(Level.SENTENCE, schema.columns[:1], (feature,))})
    table = LevelTable(Level.SENTENCE, len(vectors), {"doc_id": np.arange(len(vectors))}, {FEATURE: vectors})
    with open_for_writing(path, plan) as writer:
        writer.commit(plan.shards[0], ShardResult({Level.SENTENCE: table}, [], {}, {}))
        writer.complete()


def read_back(path: Path, vectors: np.ndarray) -> np.ndarray:
    """Return the vectors of a file or store."""
    if path.is_dir():
        return bertfeat.open_store(path).numpy("sentence", FEATURE)
    column = pq.read_table(path)[FEATURE].combine_chunks()
    if pa.types.is_fixed_size_binary(column.type):
        flat = np.frombuffer(column.buffers()[1], vectors.dtype)
    else:
        flat = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(vectors.shape)


def measure_writers(folder: Path, vectors: np.ndarray, rounds: int) -> dict[str, dict[str, float]]:
    """Let all write in turns, and read back what they wrote."""
    found = writers(vectors)
    cpu: dict[str, list[float]] = {name: [] for name in found}
    wall: dict[str, list[float]] = {name: [] for name in found}
    reading: dict[str, list[float]] = {name: [] for name in found}
    n_bytes: dict[str, int] = {}
    for number in range(rounds):
        for place, (name, write) in enumerate(found.items()):
            path = folder / f"{vectors.dtype}-{place}-{number}"
            start, start_cpu = time.perf_counter(), time.process_time()
            write(path)
            cpu[name].append(time.process_time() - start_cpu)
            wall[name].append(time.perf_counter() - start)
            start = time.perf_counter()
            read = read_back(path, vectors)
            reading[name].append(time.perf_counter() - start)
            assert np.array_equal(read, vectors), name
            del read
            files = [path] if path.is_file() else list(path.rglob("*.parquet"))
            n_bytes[name] = sum(file.stat().st_size for file in files)
            for file in files:
                file.unlink()
    return {
        name: {
            "cpu_s": statistics.median(cpu[name]),
            "wall_s": statistics.median(wall[name]),
            "read_s": statistics.median(reading[name]),
            "million_values_per_cpu_s": vectors.size / statistics.median(cpu[name]) / 1e6,
            "ratio": n_bytes[name] / vectors.nbytes,
        }
        for name in found
    }


def measure_columns(folder: Path, columns: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Write the columns before the vectors with each codec."""
    path, table = folder / "columns.parquet", columns.to_arrow()
    found = {}
    for dictionary in (False, True):
        for codec in ("none", "lz4", "zstd"):
            start = time.process_time()
            pq.write_table(table, path, compression=codec, use_dictionary=dictionary)
            seconds = time.process_time() - start
            name = codec + (", dictionary" if dictionary else "")
            found[name] = {"cpu_s": seconds, "bytes_per_row": path.stat().st_size / len(columns)}
    return found


def print_table(result: dict[str, Any]) -> None:
    print("| vectors | writer | CPU, million values/s | size | read back, GB/s |\n|---|---|---|---|---|")
    for dtype, rivals in result["writers"].items():
        for name, found in rivals.items():
            rate = result["gigabytes"][dtype] / found["read_s"]
            cells = (dtype, name, f"{found['million_values_per_cpu_s']:.0f}", f"{found['ratio']:.3f}", f"{rate:.2f}")
            print("|", " | ".join(cells), "|")
    print("\n| columns before the vectors | bytes per row | CPU ms |\n|---|---|---|")
    for name, found in result["columns"].items():
        print(f"| {name} | {found['bytes_per_row']:.1f} | {found['cpu_s'] * 1e3:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="300 sentences")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": describe_machine(), "rounds": arguments.rounds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        features, columns, run_s = extract(folder, 300 if arguments.quick else 3000)
        arrays = {"float32": features, "float16": features.astype(np.float16)}
        result["n_tokens"], result["gigabytes"] = len(features), {k: v.nbytes / 1e9 for k, v in arrays.items()}
        result["writers"] = {k: measure_writers(folder, v, arguments.rounds) for k, v in arrays.items()}
        result["columns"] = measure_columns(folder, columns)
    # The run wrote float32 arrays itself; without the writing, this is the rest.
    committed = {k: v["bertfeat array, a shard's commit"]["cpu_s"] for k, v in result["writers"].items()}
    encoded = run_s - committed["float32"]
    result["run_cpu_s"] = run_s
    result["share_of_a_run"] = {k: v / (encoded + v) for k, v in committed.items()}
    print_table(result)
    print(json.dumps(result, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
