"""Index libraries: each builds an index of a folder's vectors, and searches it at several settings.

`benchmarks.index` runs them, each in its environment. The folder has base.npy, queries.npy and tune.npy, float16
(n, dim), and the store of the first.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured import peak_bytes

K = 10
_N_ALONE = 300
_PROBES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_STEPS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)


class Rival(ABC):
    """A library; `settings` are those to search at, None for its own parameters."""

    settings: tuple[int | None, ...] = _STEPS

    def __init__(self, folder: Path, kind: str, max_memory: int) -> None:
        self.folder, self.kind, self.max_memory = folder, kind, max_memory
        self.n_threads = os.cpu_count() or 1
        self.saved = folder / "rival.index"

    @abstractmethod
    def build(self) -> dict[str, Any] | None:
        """Build the index of the folder's vectors, and return what else is to be reported."""

    @abstractmethod
    def search(self, queries: np.ndarray, setting: Any, n_threads: int) -> np.ndarray:
        """Return the positions of the nearest vectors, int64 (n_queries, K)."""

    @abstractmethod
    def save(self) -> None:
        """Write the index to `saved`, a file or a folder."""

    def vectors(self) -> np.ndarray:
        """Return the vectors at length 1, float32."""
        vectors = np.load(self.folder / "base.npy").astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


class Bertfeat(Rival):
    """bertfeat, with the index that `auto` chooses, or with that of a factory string."""

    def build(self) -> dict[str, Any]:
        """Build the index and tune it by the given queries."""
        from bertfeat import build_index

        kind, self.saved = self.kind or "auto", self.folder / f"index-{self.kind}" / "index.faiss"
        tuning = {"index": kind, "max_memory": self.max_memory, "tune_queries": self.folder / "tune.npy"}
        self.index = build_index(self.folder / "store", self.saved.parent, overwrite=True, **tuning)
        found = self.index.description
        self.own = dict(found.parameters)
        self.settings = (None, *(_PROBES if "IVF" in found.factory else ()))
        return {"factory": found.factory, "parameters": self.own, "measured": dict(found.measured)}

    def search(self, queries: np.ndarray, setting: int | None, n_threads: int) -> np.ndarray:
        """Search with another number of lists, or with the parameters that were tuned."""
        import faiss

        faiss.omp_set_num_threads(n_threads)
        self.index._vectors.parameters = self.own if setting is None else {**self.own, "nprobe": setting}
        return self.index.nearest(queries, K)[1]

    def save(self) -> None:
        """Do nothing: the build saves it."""


class Faiss(Rival):
    """faiss with a factory string; a refinement compares `refined` times as many hits again."""

    refined = 6

    def build(self) -> None:
        """Build the index; of bertfeat's own choice, its parameters are a setting too."""
        import faiss

        vectors = self.vectors()
        faiss.omp_set_num_threads(self.n_threads)
        self.index = faiss.index_factory(vectors.shape[1], self.kind, faiss.METRIC_INNER_PRODUCT)
        self.index.train(vectors)
        self.index.add(vectors)
        self.settings = _PROBES if "IVF" in self.kind else _STEPS if "HNSW" in self.kind else ()
        chosen = self.folder / "result-bertfeat.json"
        same = json.loads(chosen.read_text(encoding="utf-8")) if chosen.exists() else {"factory": ""}
        if same["factory"] == self.kind:
            self.own = same["parameters"]
            self.settings = (None, *self.settings)

    def search(self, queries: np.ndarray, setting: int | None, n_threads: int) -> np.ndarray:
        """Search at a setting."""
        import faiss

        faiss.omp_set_num_threads(n_threads)
        name = "nprobe" if "IVF" in self.kind else "efSearch"
        for known, value in (self.own if setting is None else {name: setting}).items():
            faiss.ParameterSpace().set_index_parameter(self.index, known, value)
        if setting is not None and "Refine" in self.kind:
            self.index.k_factor = self.refined
        queries = queries.astype(np.float32)
        faiss.normalize_L2(queries)
        return self.index.search(queries, K)[1]

    def save(self) -> None:
        """Write the index."""
        import faiss

        faiss.write_index(self.index, str(self.saved))


class Autofaiss(Faiss):
    """autofaiss, which chooses the index and its parameters within the same memory."""

    settings = (None,)

    def build(self) -> dict[str, Any]:
        """Build the index, with its parameters set."""
        from autofaiss import build_index

        self.own = {}
        self.index, info = build_index(
            self.vectors(),
            save_on_disk=False,
            metric_type="ip",
            nb_cores=self.n_threads,
            max_index_memory_usage=f"{self.max_memory / 1e6:.0f}MB",
            current_memory_available=f"{3 * self.max_memory / 1e6:.0f}MB",
            verbose=40,
        )
        return {"factory": info["index_key"], "parameters": info["index_param"]}


class Hnswlib(Rival):
    """hnswlib: a graph with `kind` links per vector, of float32."""

    def build(self) -> None:
        """Build the index."""
        import hnswlib

        vectors = self.vectors()
        self.index = hnswlib.Index(space="ip", dim=vectors.shape[1])
        self.index.init_index(max_elements=len(vectors), M=int(self.kind), ef_construction=200)
        self.index.set_num_threads(self.n_threads)
        self.index.add_items(vectors)

    def search(self, queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        """Search at a setting."""
        self.index.set_ef(setting)
        return self.index.knn_query(queries.astype(np.float32), K, num_threads=n_threads)[0].astype(np.int64)

    def save(self) -> None:
        """Write the index."""
        self.index.save_index(str(self.saved))


class Usearch(Rival):
    """usearch: a graph with 16 links per vector, of the type `kind` (f16, i8)."""

    def build(self) -> None:
        """Build the index."""
        from usearch.index import Index

        vectors = self.vectors()
        self.index = Index(ndim=vectors.shape[1], metric="cos", dtype=self.kind, connectivity=16, expansion_add=128)
        self.index.add(np.arange(len(vectors)), vectors, threads=self.n_threads)

    def search(self, queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        """Search at a setting."""
        self.index.expansion_search = setting
        found = self.index.search(queries.astype(np.float32), K, threads=n_threads).keys
        return np.atleast_2d(found).astype(np.int64)

    def save(self) -> None:
        """Write the index."""
        self.index.save(str(self.saved))


class Svs(Rival):
    """SVS: a Vamana graph, of the storage `kind` (LVQ8, LVQ4x8, float16)."""

    def build(self) -> None:
        """Build the index."""
        import svs

        vectors = self.vectors()
        stored: Any = vectors.astype(np.float16) if self.kind == "float16" else vectors
        if self.kind.startswith("LVQ"):
            bits = [int(part) for part in self.kind.removeprefix("LVQ").split("x")]
            path = str(self.folder / "base.fvecs")
            svs.write_vecs(vectors, path)
            loader = svs.VectorDataLoader(path, svs.DataType.float32, dims=vectors.shape[1])
            stored = svs.LVQLoader(loader, primary=bits[0], residual=bits[1] if bits[1:] else 0)
        how = svs.VamanaBuildParameters(alpha=0.95, graph_max_degree=32, window_size=64, prune_to=30)
        self.index = svs.Vamana.build(how, stored, svs.DistanceType.MIP, num_threads=self.n_threads)

    def search(self, queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        """Search at a setting."""
        if self.index.num_threads != n_threads:
            self.index.num_threads = n_threads
        self.index.search_window_size = setting
        return self.index.search(queries.astype(np.float32), K)[0].astype(np.int64)

    def save(self) -> None:
        """Write the index."""
        self.index.save(*(str(self.saved / part) for part in ("config", "graph", "data")))


RIVALS: dict[str, type[Rival]] = {
    "bertfeat": Bertfeat,
    "faiss": Faiss,
    "autofaiss": Autofaiss,
    "hnswlib": Hnswlib,
    "usearch": Usearch,
    "svs": Svs,
}


def run(folder: str, library: str, kind: str, max_memory: int) -> dict[str, Any]:
    """Build and search; the hits of each setting are in the file that `found` names."""
    rival = RIVALS[library](Path(folder), kind, max_memory)
    before, started = peak_bytes(), time.perf_counter()
    about = rival.build() or {}
    result: dict[str, Any] = {"build_s": time.perf_counter() - started, "build_bytes": peak_bytes() - before, **about}
    rival.save()
    files = [rival.saved] if rival.saved.is_file() else [path for path in rival.saved.rglob("*") if path.is_file()]
    result |= {"n_bytes": sum(path.stat().st_size for path in files), "settings": []}
    queries = np.load(Path(folder) / "queries.npy")
    for setting in rival.settings:
        found, fast = _rate(rival, queries, setting, rival.n_threads)
        path = Path(folder) / f"found-{library}-{kind}-{setting}.npy"
        np.save(path, found)
        started = time.perf_counter()
        for query in queries[:_N_ALONE]:
            rival.search(query[None], setting, rival.n_threads)
        alone = _N_ALONE / (time.perf_counter() - started)
        rates = {"queries_per_s": fast, "one_thread": _rate(rival, queries, setting, 1)[1], "one_at_a_time": alone}
        result["settings"].append({"setting": setting, "found": str(path), **rates})
    return result


def _rate(rival: Rival, queries: np.ndarray, setting: Any, n_threads: int) -> tuple[np.ndarray, float]:
    """Return the hits, and the queries per second of the median of three calls with all queries."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        found = rival.search(queries, setting, n_threads)
        seconds.append(time.perf_counter() - started)
    return found, len(queries) / sorted(seconds)[1]
