"""Memory and score of probes on a store five times as large as their memory, and in memory.

    python -m benchmarks.probe_memory [--quick] [--heads logreg,svm,mlp]

A store of random vectors whose classes a linear rule decides, with noise: 960 MB of float32, or 230 MB with --quick.
Each fit runs in a process of its own; `own_mib` is its peak less that of a fit on the first 500 rows. Prints JSON.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.machine import report
from benchmarks.measured import measure
from bertfeat import fit_probe, import_vectors

DIM, N_CLASSES, N_DEV = 384, 5, 25_000


def write_store(folder: Path, name: str, n_rows: int, seed: int) -> Path:
    """Import random vectors with the class that a rule gives them; return the store."""
    rule = np.random.default_rng(0).normal(size=(DIM, N_CLASSES)).astype(np.float32)
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n_rows, DIM)).astype(np.float32)
    labels = (vectors @ rule + rng.gumbel(scale=10.0, size=(n_rows, N_CLASSES))).argmax(axis=1)
    np.save(folder / f"{name}.npy", vectors)
    pl.DataFrame({"doc_id": range(n_rows), "label": labels}).write_parquet(folder / f"{name}.parquet")
    settings: dict[str, Any] = {"level": "sentence", "store_dtype": "float32", "shard_bytes": "40MB"}
    import_vectors(folder / f"{name}.npy", folder / name, ids=folder / f"{name}.parquet", **settings)
    return folder / name


def fitted(store: str, dev: str, **settings: Any) -> dict[str, Any]:
    """Fit and score a probe."""
    probe = fit_probe(store, "label", **settings)
    score = probe.score(dev, bootstrap=False)
    return {"accuracy": score.scores.accuracy, "streamed": probe.training.streamed, "seconds": probe.training.seconds}


def run(folder: Path, heads: list[str], n_rows: int) -> dict[str, Any]:
    """Fit each head in memory and streamed."""
    stores = {"store": write_store(folder, "train", n_rows, seed=1), "dev": write_store(folder, "dev", N_DEV, seed=2)}
    n_bytes = n_rows * DIM * 4
    results = {}
    for head in heads:
        how = {**stores, "head": head, **({"max_epochs": 4} if head == "mlp" else {})}
        least = measure("benchmarks.probe_memory:fitted", max_memory=n_bytes // 5, limit=500, **how)
        streamed = measure("benchmarks.probe_memory:fitted", max_memory=n_bytes // 5, **how)
        whole = measure("benchmarks.probe_memory:fitted", max_memory=100 * n_bytes, **how)
        for found in (streamed, whole):
            found["own_mib"] = (found["peak_bytes"] - least["peak_bytes"]) / 2**20
        results[head] = {"streamed": streamed, "in_memory": whole, "least_peak_mib": least["peak_bytes"] / 2**20}
    return {"store_mib": n_bytes / 2**20, "max_memory_mib": n_bytes / 5 / 2**20, "heads": results}


def main() -> None:
    """Fit the heads of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--heads", default="logreg,svm,ridge,centroid,mlp")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report(run(Path(folder), arguments.heads.split(","), 150_000 if arguments.quick else 625_000))


if __name__ == "__main__":
    main()
