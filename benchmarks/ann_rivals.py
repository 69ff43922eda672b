"""One index library: builds its index of a folder's vectors, and searches it at several settings.

    python benchmarks/ann_rivals.py FOLDER RIVAL        run by foreign_queries.py, in the environment of the rival

FOLDER has base.npy and queries.npy, float16 (n, dim). Writes the hits of each setting as found-RIVAL-SETTING.npy and
the rest as result-RIVAL.json.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

K = 10
_N_ALONE = 300
_PROBES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_STEPS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384)


class Rival(ABC):
    """A library: `build` fills an index, `search` returns positions (n_queries, K) at one of the `settings`."""

    settings: tuple[Any, ...] = _STEPS

    def __init__(self, folder: Path, kind: str, n_threads: int) -> None:
        self.folder, self.kind, self.n_threads = folder, kind, n_threads

    @abstractmethod
    def build(self) -> None:
        """Build the index of the folder's vectors."""

    @abstractmethod
    def search(self, queries: np.ndarray, setting: Any, n_threads: int) -> np.ndarray:
        """Return the positions of the nearest vectors, int64 (n_queries, K)."""

    @abstractmethod
    def n_bytes(self) -> int:
        """Return the size of the saved index."""

    def about(self) -> dict[str, Any]:
        """Return what else is to be reported."""
        return {}

    def vectors(self) -> np.ndarray:
        """Return the vectors at length 1, float32."""
        vectors = np.load(self.folder / "base.npy").astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


class Bertfeat(Rival):
    """bertfeat, with the index that `auto` chooses, or with that of a factory string."""

    settings = _PROBES

    def build(self) -> None:
        """Build the index."""
        from bertfeat.ann.description import BuildSettings
        from bertfeat.ann.indexbuild import build, plan_build
        from bertfeat.vectors.array import ArrayVectors

        base = np.load(self.folder / "base.npy", mmap_mode="r")
        settings = BuildSettings(index=self.kind or "auto", n_threads=self.n_threads)
        self.place = self.folder / f"built-{self.kind}"
        self.built = build(ArrayVectors(base), self.place, plan_build(*base.shape, settings))

    def about(self) -> dict[str, Any]:
        """Return what was built, its own recall, and the parameters that the other half of the queries finds."""
        from bertfeat.ann.description import BuildSettings
        from bertfeat.ann.tuning import HeldOut, tune
        from bertfeat.vectors.array import ArrayVectors

        base = ArrayVectors(np.load(self.folder / "base.npy", mmap_mode="r"))
        given = np.load(self.folder / "tune.npy").astype(np.float32)
        started = time.perf_counter()
        held = HeldOut.drawn(base, None, BuildSettings(n_queries=2), given=given)
        tuned = tune(self._index(), held, base, BuildSettings().recall)
        self.tuned = tuned["parameters"]
        return {
            "factory": self.built.factory,
            "parameters": self.built.parameters,
            "recall_of_own": self.built.measured["recall_at_10"],
            "seconds": self.built.seconds,
            "parameters_by_queries": tuned["parameters"],
            "measured_by_queries": tuned["given"],
            "tuning_by_queries_s": time.perf_counter() - started,
        }

    def _index(self) -> Any:
        import faiss

        from bertfeat.ann.vectorindex import VectorIndex
        from bertfeat.vectors.nearest import Metric

        if not hasattr(self, "opened"):
            self.opened = VectorIndex(faiss.read_index(str(self.place / "index.faiss")), Metric.COSINE)
        return self.opened

    def search(self, queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        """Search at a setting, with the refinement that the queries to tune by find."""
        import faiss

        faiss.omp_set_num_threads(n_threads)
        index = self._index()
        index.parameters = {**self.tuned, "nprobe": setting}
        return index.search(queries, K).positions

    def n_bytes(self) -> int:
        """Return the size of the saved index."""
        return (self.place / "index.faiss").stat().st_size


class Faiss(Rival):
    """faiss with a factory string; a refinement compares `refined` times as many hits again."""

    refined = 6

    def build(self) -> None:
        """Build the index."""
        import faiss

        vectors = self.vectors()
        faiss.omp_set_num_threads(self.n_threads)
        self.index = faiss.index_factory(vectors.shape[1], self.kind, faiss.METRIC_INNER_PRODUCT)
        self.index.train(vectors)
        self.index.add(vectors)
        self.settings = _PROBES if "IVF" in self.kind else _STEPS

    def search(self, queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        """Search at a setting."""
        import faiss

        faiss.omp_set_num_threads(n_threads)
        space, name = faiss.ParameterSpace(), "nprobe" if "IVF" in self.kind else "efSearch"
        space.set_index_parameter(self.index, name, setting)
        if "Refine" in self.kind:
            self.index.k_factor = self.refined
        queries = queries.astype(np.float32)
        faiss.normalize_L2(queries)
        return self.index.search(queries, K)[1]

    def n_bytes(self) -> int:
        """Return the size of the saved index."""
        import faiss

        path = self.folder / "rival.index"
        faiss.write_index(self.index, str(path))
        return path.stat().st_size


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

    def n_bytes(self) -> int:
        """Return the size of the saved index."""
        path = self.folder / "rival.index"
        self.index.save_index(str(path))
        return path.stat().st_size


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

    def n_bytes(self) -> int:
        """Return the size of the saved index."""
        path = self.folder / "rival.index"
        self.index.save(str(path))
        return path.stat().st_size


class Svs(Rival):
    """SVS: a Vamana graph, of the storage `kind` (LVQ8, LVQ4x8, float16)."""

    def build(self) -> None:
        """Build the index."""
        import svs

        vectors = self.vectors()
        stored: Any = vectors.astype(np.float16) if self.kind == "float16" else vectors
        if self.kind.startswith("LVQ"):
            bits = [int(part) for part in self.kind.removeprefix("LVQ").split("x")]
            loader = svs.VectorDataLoader(self._saved(svs, vectors), svs.DataType.float32, dims=vectors.shape[1])
            stored = svs.LVQLoader(loader, primary=bits[0], residual=bits[1] if bits[1:] else 0)
        how = svs.VamanaBuildParameters(alpha=0.95, graph_max_degree=32, window_size=64, prune_to=30)
        self.index = svs.Vamana.build(how, stored, svs.DistanceType.MIP, num_threads=self.n_threads)

    def _saved(self, svs: Any, vectors: np.ndarray) -> str:
        path = str(self.folder / "base.fvecs")
        svs.write_vecs(vectors, path)
        return path

    def search(self, queries: np.ndarray, setting: int, n_threads: int) -> np.ndarray:
        """Search at a setting."""
        if self.index.num_threads != n_threads:
            self.index.num_threads = n_threads
        self.index.search_window_size = setting
        return self.index.search(queries.astype(np.float32), K)[0].astype(np.int64)

    def n_bytes(self) -> int:
        """Return the size of the saved index."""
        folders = [str(self.folder / f"svs-{part}") for part in ("config", "graph", "data")]
        self.index.save(*folders)
        return sum(path.stat().st_size for folder in folders for path in Path(folder).iterdir())


RIVALS = {"bertfeat": Bertfeat, "faiss": Faiss, "hnswlib": Hnswlib, "usearch": Usearch, "svs": Svs}


def peak_bytes() -> int:
    """Return the peak of this process's memory."""
    status = Path("/proc/self/status")
    if not status.exists():  # macOS, which counts in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def rate(rival: Rival, queries: np.ndarray, setting: Any, n_threads: int) -> tuple[np.ndarray, float]:
    """Return the hits, and the queries per second of the median of three calls with all queries."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        found = rival.search(queries, setting, n_threads)
        seconds.append(time.perf_counter() - started)
    return found, len(queries) / sorted(seconds)[1]


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    library, _, kind = name.partition(" ")
    n_threads = os.cpu_count() or 1
    rival = RIVALS[library](folder, kind, n_threads)
    before, started = peak_bytes(), time.perf_counter()
    rival.build()
    result: dict[str, Any] = {"build_s": time.perf_counter() - started, "peak_build_bytes": peak_bytes() - before}
    result |= {"n_bytes": rival.n_bytes(), "n_threads": n_threads, "settings": [], **rival.about()}
    queries = np.load(folder / "queries.npy")
    for setting in rival.settings:
        found, fast = rate(rival, queries, setting, n_threads)
        np.save(folder / f"found-{name}-{setting}.npy", found)
        started = time.perf_counter()
        for query in queries[:_N_ALONE]:
            rival.search(query[None], setting, n_threads)
        alone = _N_ALONE / (time.perf_counter() - started)
        rates = {"queries_per_s": fast, "one_thread": rate(rival, queries, setting, 1)[1], "one_at_a_time": alone}
        result["settings"].append({"setting": setting, **rates})
    (folder / f"result-{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
