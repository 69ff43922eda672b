"""Index libraries: each builds an index of a folder's vectors, and searches it at several settings.

`benchmarks.index` runs them, each in its environment. The folder has base.npy, queries.npy and tune.npy, float16
(n, dim), and the store of the first.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured import peak_bytes

K = 10
N_THREADS = os.cpu_count() or 1
N_ALONE = 300
PROBES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
STEPS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)


@dataclass(frozen=True)
class Built:
    """An index.

    Attributes:
        search: Returns the positions of the nearest vectors, int64 (n_queries, K), of queries, a setting and a number
            of threads.
        save: Writes the index to a path, a file or a folder; the path is where it is after that.
        settings: Those to search at; None stands for the index's own parameters.
        about: What else is to be reported.
    """

    search: Callable[[np.ndarray, Any, int], np.ndarray]
    save: Callable[[Path], Any]
    settings: tuple[int | None, ...] = STEPS
    about: Mapping[str, Any] = field(default_factory=dict)


def unit_vectors(folder: Path) -> np.ndarray:
    """Return the vectors at length 1, float32."""
    vectors = np.load(folder / "base.npy").astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def bertfeat(folder: Path, kind: str, max_memory: int) -> Built:
    """Build the index that bertfeat's `auto` chooses, or that of a factory string, tuned by the given queries."""
    import faiss

    from bertfeat import build_index

    tuning = {"factory": kind or "auto", "max_memory": max_memory, "tune_queries": np.load(folder / "tune.npy")}
    index = build_index(folder / "store", folder / f"index-{kind}", overwrite=True, **tuning)
    own = dict(index.description.parameters)

    def search(queries: np.ndarray, setting: int | None, n_threads: int) -> np.ndarray:
        faiss.omp_set_num_threads(n_threads)
        index._vectors.parameters = own if setting is None else {**own, "nprobe": setting}
        return index.nearest(queries, K)[1]

    about = {"factory": index.description.factory, "parameters": own, "measured": dict(index.description.measured)}
    settings = (None, *(PROBES if "IVF" in about["factory"] else ()))
    return Built(search, lambda path: shutil.copy(index.path / "index.faiss", path), settings, about)


def faiss(folder: Path, kind: str, max_memory: int) -> Built:  # noqa: ARG001
    """Build faiss's index of a factory string, and search with bertfeat's parameters too where it chose the string."""
    import faiss

    vectors = unit_vectors(folder)
    faiss.omp_set_num_threads(N_THREADS)
    index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    chosen = folder / "result-bertfeat.json"
    same = json.loads(chosen.read_text(encoding="utf-8")) if chosen.exists() else {"factory": ""}
    name, settings = ("nprobe", PROBES) if "IVF" in kind else ("efSearch", STEPS if "HNSW" in kind else ())
    if same["factory"] == kind:
        settings = (None, *settings)

    def prepare(setting: int | None) -> None:
        for known, value in (same["parameters"] if setting is None else {name: setting}).items():
            faiss.ParameterSpace().set_index_parameter(index, known, value)
        if setting is not None and "Refine" in kind:
            # A refinement compares six times as many hits again as are asked for.
            index.k_factor = 6

    return _of_faiss(index, prepare, settings, {})


def _of_faiss(index: Any, prepare: Callable[[Any], None], settings: Any, about: dict[str, Any]) -> Built:
    import faiss

    def search(queries: np.ndarray, setting: int | None, n_threads: int) -> np.ndarray:
        faiss.omp_set_num_threads(n_threads)
        prepare(setting)
        queries = queries.astype(np.float32)
        faiss.normalize_L2(queries)
        return index.search(queries, K)[1]

    return Built(search, lambda path: faiss.write_index(index, str(path)), settings, about)


def autofaiss(folder: Path, kind: str, max_memory: int) -> Built:  # noqa: ARG001
    """Let autofaiss choose the index and its parameters within the same memory."""
    from autofaiss import build_index

    sizes = {"max_index_memory_usage": max_memory, "current_memory_available": 3 * max_memory}
    memory = {name: f"{size / 1e6:.0f}MB" for name, size in sizes.items()}
    index, info = build_index(
        unit_vectors(folder), save_on_disk=False, metric_type="ip", nb_cores=N_THREADS, verbose=40, **memory
    )
    about = {"factory": info["index_key"], "parameters": info["index_param"]}
    return _of_faiss(index, lambda _: None, (None,), about)


def hnswlib(folder: Path, kind: str, max_memory: int) -> Built:  # noqa: ARG001
    """Build a graph of hnswlib with `kind` links per vector, of float32."""
    import hnswlib

    vectors = unit_vectors(folder)
    index = hnswlib.Index(space="ip", dim=vectors.shape[1])
    index.init_index(max_elements=len(vectors), M=int(kind), ef_construction=200)
    index.set_num_threads(N_THREADS)
    index.add_items(vectors)

    def search(queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        index.set_ef(setting)
        return index.knn_query(queries.astype(np.float32), K, num_threads=n_threads)[0].astype(np.int64)

    return Built(search, lambda path: index.save_index(str(path)))


def usearch(folder: Path, kind: str, max_memory: int) -> Built:  # noqa: ARG001
    """Build a graph of usearch with 16 links per vector, of the type `kind` (f16, i8)."""
    from usearch.index import Index

    vectors = unit_vectors(folder)
    index = Index(ndim=vectors.shape[1], metric="cos", dtype=kind, connectivity=16, expansion_add=128)
    index.add(np.arange(len(vectors)), vectors, threads=N_THREADS)

    def search(queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        index.expansion_search = setting
        return np.atleast_2d(index.search(queries.astype(np.float32), K, threads=n_threads).keys).astype(np.int64)

    return Built(search, lambda path: index.save(str(path)))


def svs(folder: Path, kind: str, max_memory: int) -> Built:  # noqa: ARG001
    """Build a Vamana graph of SVS, of the storage `kind` (LVQ8, LVQ4x8, float16)."""
    import svs

    vectors = unit_vectors(folder)
    stored: Any = vectors.astype(np.float16) if kind == "float16" else vectors
    if kind.startswith("LVQ"):
        bits = [int(part) for part in kind.removeprefix("LVQ").split("x")]
        path = str(folder / "base.fvecs")
        svs.write_vecs(vectors, path)
        loader = svs.VectorDataLoader(path, svs.DataType.float32, dims=vectors.shape[1])
        stored = svs.LVQLoader(loader, primary=bits[0], residual=bits[1] if bits[1:] else 0)
    how = svs.VamanaBuildParameters(alpha=0.95, graph_max_degree=32, window_size=64, prune_to=30)
    index = svs.Vamana.build(how, stored, svs.DistanceType.MIP, num_threads=N_THREADS)

    def search(queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        if index.num_threads != n_threads:
            index.num_threads = n_threads
        index.search_window_size = setting
        return index.search(queries.astype(np.float32), K)[0].astype(np.int64)

    def save(path: Path) -> None:
        path.mkdir(exist_ok=True)
        index.save(*(str(path / part) for part in ("config", "graph", "data")))

    return Built(search, save)


RIVALS = {build.__name__: build for build in (bertfeat, faiss, autofaiss, hnswlib, usearch, svs)}


def run(folder: str, library: str, kind: str, max_memory: int) -> dict[str, Any]:
    """Build and search; the hits of each setting are in the file that `found` names."""
    place, before, started = Path(folder), peak_bytes(), time.perf_counter()
    built = RIVALS[library](place, kind, max_memory)
    result: dict[str, Any] = {"build_s": time.perf_counter() - started, "build_bytes": peak_bytes() - before}
    saved = place / f"saved-{library}-{kind}"
    built.save(saved)
    files = [saved] if saved.is_file() else [path for path in saved.rglob("*") if path.is_file()]
    result |= {**built.about, "n_bytes": sum(path.stat().st_size for path in files), "settings": []}
    queries = np.load(place / "queries.npy")
    for setting in built.settings:
        found, fast = _rate(built, queries, setting, N_THREADS)
        path = place / f"found-{library}-{kind}-{setting}.npy"
        np.save(path, found)
        started = time.perf_counter()
        for query in queries[:N_ALONE]:
            built.search(query[None], setting, N_THREADS)
        alone = len(queries[:N_ALONE]) / (time.perf_counter() - started)
        rates = {"queries_per_s": fast, "one_thread": _rate(built, queries, setting, 1)[1], "one_at_a_time": alone}
        result["settings"].append({"setting": setting, "found": str(path), **rates})
    return result


def _rate(built: Built, queries: np.ndarray, setting: Any, n_threads: int) -> tuple[np.ndarray, float]:
    """Return the hits, and the queries per second of the median of three calls with all queries."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        found = built.search(queries, setting, n_threads)
        seconds.append(time.perf_counter() - started)
    return found, len(queries) / sorted(seconds)[1]
