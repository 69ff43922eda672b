"""Indexes searched with queries of another text than theirs: recall against speed, build time and memory.

    python benchmarks/foreign_queries.py --folder WORK --store STORE --queries STORE [--n-vectors 1000000]
    python benchmarks/foreign_queries.py --folder WORK --rival "hnswlib 16"      one rival more, or again
    python benchmarks/foreign_queries.py --folder WORK --table

STORE and the store of the queries hold the same feature of different texts. 1,000 vectors of the latter are searched
for; 1,000 others are given to tune by. Each rival builds in a process of its own, hnswlib, usearch and SVS in another
environment: ANN_PYTHON=<python with benchmarks/requirements-ann.txt>. Each is searched at ten settings, and compared
with exact search; the speed at a recall is interpolated between two of them. All results stay in WORK, so that one
rival can be measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

RIVALS = ("bertfeat", "faiss AUTO", "hnswlib 16", "usearch i8", "usearch f16", "svs LVQ8")
TARGETS = (0.9, 0.95, 0.98)
N_QUERIES = 1000
K = 10


def prepare(folder: Path, arguments: argparse.Namespace) -> None:
    """Write the vectors and the queries, and the nearest vectors of these by exact search."""
    import bertfeat
    from bertfeat.ann.exact import exact_search
    from bertfeat.vectors.array import ArrayVectors
    from bertfeat.vectors.nearest import Metric

    rng = np.random.default_rng(0)
    found = []
    for path, n_rows in ((arguments.store, arguments.n_vectors), (arguments.queries, 2 * N_QUERIES)):
        store = bertfeat.open_store(path)
        vectors = store.numpy(arguments.level, arguments.feature)
        rows = np.flatnonzero(store.valid(arguments.level, arguments.feature))
        found.append(vectors[rng.permutation(rows)[:n_rows]])
    base, queries = found
    scores, truth = exact_search(ArrayVectors(base), queries[:N_QUERIES], K, Metric.COSINE)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"tune": queries[N_QUERIES:], "truth": truth, "truth_scores": scores, "queries": queries[:N_QUERIES]}
    for name, array in (*arrays.items(), ("base", base)):
        np.save(folder / f"{name}.npy", array)


def recall_of(folder: Path, found: np.ndarray) -> float:
    """Return the recall@10 of hits; vectors as close as the last true one count."""
    from bertfeat.ann.evaluation import recall_of_each
    from bertfeat.ann.exact import exact_scores
    from bertfeat.vectors.array import ArrayVectors
    from bertfeat.vectors.nearest import Metric

    base, queries = np.load(folder / "base.npy", mmap_mode="r"), np.load(folder / "queries.npy")
    scores = exact_scores(ArrayVectors(base), queries, found, Metric.COSINE)
    truth, true_scores = np.load(folder / "truth.npy"), np.load(folder / "truth_scores.npy")
    each = recall_of_each(found, truth, K, found_scores=scores, truth_scores=true_scores, metric=Metric.COSINE)
    return float(each.mean())


def measure(folder: Path, rival: str) -> None:
    """Run a rival in its own process and environment; it writes its result into the folder."""
    library = rival.split()[0]
    python = sys.executable if library in ("bertfeat", "faiss") else os.environ.get("ANN_PYTHON")
    if python is None:
        raise SystemExit(f"{rival}: set ANN_PYTHON to the Python of an environment of benchmarks/requirements-ann.txt")
    asked = rival
    if "AUTO" in rival:
        chosen = folder / "result-bertfeat.json"
        if not chosen.exists():
            raise SystemExit(f"{rival}: measure bertfeat first, whose choice it repeats")
        asked = rival.replace("AUTO", json.loads(chosen.read_text(encoding="utf-8"))["factory"])
    command = [python, str(Path(__file__).with_name("ann_rivals.py")), str(folder), asked]
    subprocess.run(command, check=True)


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results so far, by rival, with the recall of each setting."""
    found = {}
    for path in sorted(folder.glob("result-*.json"), key=lambda path: path.stat().st_mtime):
        name, result = path.stem.removeprefix("result-"), json.loads(path.read_text(encoding="utf-8"))
        for one in result["settings"]:
            if "recall" not in one:
                one["recall"] = recall_of(folder, np.load(folder / f"found-{name}-{one['setting']}.npy"))
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        found[name] = result
    return found


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
    head = ["index", "build", "peak", "bytes per vector"]
    head += [f"queries/s at {target}" for target in TARGETS] + ["one thread, 0.95", "one at a time, 0.95"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, found in results(folder).items():
        rates = [rate_at(found["settings"], target, "queries_per_s") for target in TARGETS]
        rates += [rate_at(found["settings"], 0.95, kind) for kind in ("one_thread", "one_at_a_time")]
        cells = [name, f"{found['build_s']:.0f} s", f"{found['peak_build_bytes'] / 1e9:.1f} GB"]
        cells += [f"{found['n_bytes'] / n_vectors:.0f}", *("-" if rate is None else f"{rate:,.0f}" for rate in rates)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--store")
    parser.add_argument("--queries")
    parser.add_argument("--level", default="word")
    parser.add_argument("--feature", default="layer_06")
    parser.add_argument("--n-vectors", type=int, default=1_000_000)
    parser.add_argument("--rival", action="append", help="`bertfeat FACTORY`, `faiss FACTORY`, ...; all by default")
    parser.add_argument("--table", action="store_true", help="only compare what was measured, and print it")
    arguments = parser.parse_args()
    if not (arguments.folder / "base.npy").exists():
        if None in (arguments.store, arguments.queries):
            parser.error("name the stores with --store and --queries")
        prepare(arguments.folder, arguments)
    for rival in () if arguments.table else RIVALS if arguments.rival is None else arguments.rival:
        measure(arguments.folder, rival)
    if arguments.table or arguments.rival is None:
        print(table(arguments.folder))


if __name__ == "__main__":
    main()
