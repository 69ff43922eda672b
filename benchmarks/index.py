"""Indexes against faiss, autofaiss, hnswlib, usearch and SVS: recall against speed, build time and memory.

    python -m benchmarks.index --folder WORK --store STORE [--n-vectors 1000000]      queries of the same text
    python -m benchmarks.index --folder WORK --store STORE --queries STORE            queries of another text
    python -m benchmarks.index --folder WORK --rival "hnswlib 16"                     one rival more, or again
    python -m benchmarks.index --folder WORK --table
    python -m benchmarks.index --folder WORK --quick                                  20,000 random vectors, no rivals

STORE and the store of the queries hold the same feature. 1,000 vectors, which are in no index, are searched for; 1,000
others are given to tune by. Each rival builds in a process of its own: autofaiss in the environment of
AUTOFAISS_PYTHON, hnswlib, usearch and SVS in that of ANN_PYTHON (benchmarks/requirements-ann.txt). Each is searched
with its own parameters, where it has some, and at ten settings, and compared with exact search; the speed at a recall
is interpolated between two settings. All results stay in WORK, so that one rival can be measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import report
from benchmarks.measured import measure
from bertfeat import import_vectors, open_store
from bertfeat.plots.tables import markdown_table
from bertfeat.search import nearest_rows

RIVALS = ("bertfeat", "faiss AUTO", "autofaiss", "hnswlib 16", "usearch i8", "usearch f16", "svs LVQ8")
PYTHONS = {"autofaiss": "AUTOFAISS_PYTHON", **dict.fromkeys(("hnswlib", "usearch", "svs"), "ANN_PYTHON")}
TARGETS = (0.9, 0.95, 0.98)
N_QUERIES, K = 1000, 10


def prepare(folder: Path, arguments: argparse.Namespace) -> None:
    """Write the vectors, as an array and as a store, the queries, and the scores of their nearest vectors."""
    rng = np.random.default_rng(0)
    if arguments.quick:
        centres = rng.normal(size=(200, 64))
        found = centres[rng.integers(0, 200, 22_000)] + 0.7 * rng.normal(size=(22_000, 64))
        base, queries = found[2 * N_QUERIES :].astype(np.float16), found[: 2 * N_QUERIES].astype(np.float16)
    else:
        base = _some_of(arguments.store, arguments, rng, arguments.n_vectors + 2 * N_QUERIES)
        queries, base = base[: 2 * N_QUERIES], base[2 * N_QUERIES :]
        if arguments.queries is not None:
            queries = _some_of(arguments.queries, arguments, rng, 2 * N_QUERIES)
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in {"queries": queries[:N_QUERIES], "tune": queries[N_QUERIES:], "base": base}.items():
        np.save(folder / f"{name}.npy", array)
    store = import_vectors(folder / "base.npy", folder / "store", level="sentence")
    np.save(folder / "least.npy", nearest_rows(store, queries[:N_QUERIES], K)[0][:, -1])


def _some_of(path: str, arguments: argparse.Namespace, rng: np.random.Generator, n_rows: int) -> np.ndarray:
    """Return vectors of a store, in random order."""
    store = open_store(path)
    rows = np.flatnonzero(store.valid(arguments.level, arguments.feature))
    return store.numpy(arguments.level, arguments.feature)[rng.permutation(rows)[:n_rows]]


def recall_of(folder: Path, found: np.ndarray) -> float:
    """Return the recall@10 of hits; vectors as close as the last true one count."""
    base, queries = np.load(folder / "base.npy", mmap_mode="r"), np.load(folder / "queries.npy").astype(np.float32)
    near = base[found].astype(np.float32)
    norms = np.linalg.norm(near, axis=2) * np.linalg.norm(queries, axis=1)[:, None]
    scores = np.einsum("nkd,nd->nk", near, queries) / norms
    good = (scores >= np.load(folder / "least.npy")[:, None] - 1e-6) & (found >= 0)
    distinct = [len(np.unique(hits[right])) for hits, right in zip(found, good, strict=True)]
    return float(np.minimum(distinct, K).mean() / K)


def run(folder: Path, rival: str, max_memory: int) -> None:
    """Run a rival in its own process and environment, and write its result into the folder."""
    library = rival.split()[0]
    variable = PYTHONS.get(library)
    python = sys.executable if variable is None else os.environ.get(variable)
    if python is None:
        print(f"{rival}: left out; set {variable} to the Python of its environment", file=sys.stderr)
        return
    if "AUTO" in rival:
        chosen = json.loads((folder / "result-bertfeat.json").read_text(encoding="utf-8"))
        rival = rival.replace("AUTO", chosen["factory"])
    asked = {"folder": folder, "library": library, "kind": rival.partition(" ")[2], "max_memory": max_memory}
    found = measure("benchmarks.ann_rivals:run", python=python, **asked)
    for one in found["settings"]:
        one["recall"] = recall_of(folder, np.load(one["found"]))
    print(f"{rival}: {found}", file=sys.stderr)
    (folder / f"result-{rival}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def rate_at(settings: list[dict[str, Any]], target: float, name: str) -> float | None:
    """Return the queries per second at a recall, interpolated between two settings; None if it is not reached."""
    recalls = np.maximum.accumulate([one["recall"] for one in settings])
    rates = [one[name] for one in settings]
    if recalls[-1] < target:
        return None
    at = int(np.searchsorted(recalls, target))
    if at == 0:
        return float(rates[0])
    part = (target - recalls[at - 1]) / (recalls[at] - recalls[at - 1])
    return float(np.exp((1 - part) * np.log(rates[at - 1]) + part * np.log(rates[at])))


def table(folder: Path) -> str:
    """Return the results as Markdown."""
    n_vectors = len(np.load(folder / "base.npy", mmap_mode="r"))
    head = ["index", "build, s", "peak, GB", "bytes per vector", "own recall@10", "own queries/s"]
    head += [f"queries/s at {target}" for target in TARGETS] + ["one thread, 0.95", "one at a time, 0.95"]
    lines = []
    for path in sorted(folder.glob("result-*.json"), key=lambda path: path.stat().st_mtime):
        found = json.loads(path.read_text(encoding="utf-8"))
        own = next((one for one in found["settings"] if one["setting"] is None), {})
        others = [one for one in found["settings"] if one["setting"] is not None]
        rates = [rate_at(others, target, "queries_per_s") if others else None for target in TARGETS]
        rates += [rate_at(others, 0.95, kind) if others else None for kind in ("one_thread", "one_at_a_time")]
        size = f"{found['n_bytes'] / n_vectors:.0f}"
        cells: list[object] = [path.stem.removeprefix("result-"), f"{found['build_s']:.0f}"]
        cells += [f"{found['build_bytes'] / 1e9:.1f}", size, own.get("recall"), own.get("queries_per_s")]
        lines.append([*cells, *(None if rate is None else f"{rate:,.0f}" for rate in rates)])
    return markdown_table(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--store")
    parser.add_argument("--queries")
    parser.add_argument("--level", default="word")
    parser.add_argument("--feature", default="layer_06")
    parser.add_argument("--n-vectors", type=int, default=1_000_000)
    parser.add_argument("--max-memory", type=int, default=4_000_000_000)
    parser.add_argument("--rival", action="append", help="`bertfeat FACTORY`, `faiss FACTORY`, ...; all by default")
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if not (arguments.folder / "least.npy").exists():
        if arguments.store is None and not arguments.quick:
            parser.error("name a store with --store, or pass --quick")
        prepare(arguments.folder, arguments)
    all_rivals = RIVALS[:2] if arguments.quick else RIVALS
    for rival in () if arguments.table else arguments.rival or all_rivals:
        run(arguments.folder, rival, arguments.max_memory)
    print(table(arguments.folder))
    report({"command": " ".join(sys.argv[1:])}, arguments.folder / "machine.json")


if __name__ == "__main__":
    main()
