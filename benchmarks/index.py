"""Indexes against plain faiss and autofaiss on the same vectors: build time, recall@10, queries/s, peak memory.

    python benchmarks/index.py --store features --level word --feature layer_06 [--json FILE]
    python benchmarks/index.py --quick                  20,000 clustered random vectors

bertfeat chooses an index with `auto`; plain faiss gets the same factory string and the same search parameters, and
trains on its default number of vectors; autofaiss chooses within the same memory, in its own environment:
AUTOFAISS_PYTHON=<python with autofaiss>. Each builds in its own process; the memory before the first vector is
subtracted from its peak. All search for the same 1,000 vectors, which are in no index, on the same threads, and are
compared with exact search.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

N_QUERIES = 1000
K = 10

_PRELUDE = """
import json, resource, sys, time
from pathlib import Path
import numpy as np

def peak():
    status = Path("/proc/self/status")
    if not status.exists():  # macOS, which counts in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
"""
# Reads the queries, searches three times, and prints what was measured.
_REPORT = """
queries = np.load(folder / "queries.npy")
times = []
for _ in range(3):
    start = time.perf_counter()
    found = search(queries)
    times.append(time.perf_counter() - start)
np.save(folder / f"found-{asked['name']}.npy", found)
print("RESULT" + json.dumps({**chosen, "build_s": build_s, "queries_per_s": len(queries) / sorted(times)[1],
    "peak_build_mib": (after - before) / 2**20}))
"""
_FAISS_SEARCH = """
def search(queries):
    queries = queries.astype(np.float32)
    faiss.normalize_L2(queries)
    return index.search(queries, 10)[1]
"""
_OURS = (
    _PRELUDE
    + """
import faiss
from bertfeat.ann.description import BuildSettings
from bertfeat.ann.indexbuild import build, plan_build
from bertfeat.ann.vectorindex import VectorIndex
from bertfeat.vectors.nearest import Metric
from bertfeat.vectors.array import ArrayVectors
before = peak()
vectors = np.load(folder / "base" / "base.npy", mmap_mode="r")
start = time.perf_counter()
plans = plan_build(*vectors.shape, BuildSettings(max_memory_bytes=asked["max_memory"]))
built = build(ArrayVectors(vectors), folder / "ours", plans)
build_s, after = time.perf_counter() - start, peak()
index = VectorIndex(faiss.read_index(str(folder / "ours" / "index.faiss")), Metric.COSINE, parameters=built.parameters)
chosen = {"factory": built.factory, "parameters": built.parameters,
    "n_bytes": (folder / "ours" / "index.faiss").stat().st_size}
search = lambda queries: index.search(queries, 10).positions
"""
    + _REPORT
)
_PLAIN = (
    _PRELUDE
    + """
import faiss
before = peak()
start = time.perf_counter()
vectors = np.load(folder / "base" / "base.npy").astype(np.float32)
faiss.normalize_L2(vectors)
index = faiss.index_factory(vectors.shape[1], asked["factory"], faiss.METRIC_INNER_PRODUCT)
index.train(vectors)
index.add(vectors)
build_s, after = time.perf_counter() - start, peak()
if asked["parameters"]:
    faiss.ParameterSpace().set_index_parameters(index, ",".join(f"{k}={v}" for k, v in asked["parameters"].items()))
faiss.write_index(index, str(folder / "plain.faiss"))
chosen = {"factory": asked["factory"], "parameters": asked["parameters"],
    "n_bytes": (folder / "plain.faiss").stat().st_size}
"""
    + _FAISS_SEARCH
    + _REPORT
)
_AUTOFAISS = (
    _PRELUDE
    + """
import faiss
from autofaiss import build_index
before = peak()
start = time.perf_counter()
vectors = np.load(folder / "base" / "base.npy").astype(np.float32)
faiss.normalize_L2(vectors)
index, info = build_index(vectors, save_on_disk=False, metric_type="ip", nb_cores=asked["threads"],
    max_index_memory_usage=f"{asked['max_memory'] / 1e6:.0f}MB",
    current_memory_available=f"{3 * asked['max_memory'] / 1e6:.0f}MB", verbose=40)
build_s, after = time.perf_counter() - start, peak()
faiss.write_index(index, str(folder / "auto.faiss"))
chosen = {"factory": info["index_key"], "parameters": info["index_param"],
    "n_bytes": (folder / "auto.faiss").stat().st_size}
"""
    + _FAISS_SEARCH
    + _REPORT
)


def clustered(n_vectors: int, dim: int) -> np.ndarray:
    """Return random vectors around common centres, float16 (n_vectors, dim)."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(200, dim))
    return (centres[rng.integers(0, 200, n_vectors)] + 0.7 * rng.normal(size=(n_vectors, dim))).astype(np.float16)


def read_vectors(arguments: argparse.Namespace) -> np.ndarray:
    """Return the vectors to index and to search for, float16 (n_vectors, dim), in random order."""
    if arguments.quick:
        return clustered(20_000 + N_QUERIES, 64)
    import bertfeat

    store = bertfeat.open_store(arguments.store)
    vectors = store.numpy(arguments.level, arguments.feature)[store.valid(arguments.level, arguments.feature)]
    order = np.random.default_rng(0).permutation(len(vectors))
    return vectors[order[: arguments.n_vectors + N_QUERIES]]


def run(python: str, script: str, folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Build and search in a fresh process."""
    command = [python, "-c", script, str(folder), json.dumps(asked)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    measured: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
    # A run takes a while, and a later rival may fail.
    print(f"{asked['name']}: {measured}", file=sys.stderr, flush=True)
    return measured


def measure(folder: Path, vectors: np.ndarray, max_memory: int) -> dict[str, Any]:
    """Run bertfeat and its peers, and compare what they find with exact search."""
    from bertfeat.ann.evaluation import recall_of_each
    from bertfeat.ann.exact import exact_search
    from bertfeat.vectors.array import ArrayVectors
    from bertfeat.vectors.nearest import Metric

    base, queries = vectors[N_QUERIES:], vectors[:N_QUERIES]
    (folder / "base").mkdir()
    np.save(folder / "base" / "base.npy", base)
    np.save(folder / "queries.npy", queries)
    _, truth = exact_search(ArrayVectors(base), queries, K, Metric.COSINE)
    asked: dict[str, Any] = {"name": "bertfeat", "max_memory": max_memory, "threads": os.cpu_count()}
    results = {"bertfeat": run(sys.executable, _OURS, folder, asked)}
    asked |= {name: results["bertfeat"][name] for name in ("factory", "parameters")}
    results["faiss"] = run(sys.executable, _PLAIN, folder, {**asked, "name": "faiss"})
    if python := os.environ.get("AUTOFAISS_PYTHON"):
        results["autofaiss"] = run(python, _AUTOFAISS, folder, {**asked, "name": "autofaiss"})
    for name, found in results.items():
        found["recall_at_10"] = float(recall_of_each(np.load(folder / f"found-{name}.npy"), truth, K).mean())
        found["bytes_per_vector"] = found.pop("n_bytes") / len(base)
    return {"n_vectors": len(base), "dim": base.shape[1], "max_memory": max_memory, "results": results}


def main() -> None:
    from machine import describe_machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store")
    parser.add_argument("--level", default="word")
    parser.add_argument("--feature", default="layer_06")
    parser.add_argument("--n-vectors", type=int, default=1_000_000)
    parser.add_argument("--max-memory", type=int, default=4_000_000_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not arguments.quick and arguments.store is None:
        parser.error("name a store with --store, or pass --quick")
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder), read_vectors(arguments), arguments.max_memory)
    result = {"machine": describe_machine(), **measured}
    print(json.dumps(result, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
