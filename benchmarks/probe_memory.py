"""Memory and score of probes on a store five times as large as their memory, and in memory.

    python -m benchmarks.probe_memory [--quick] [--heads logreg,svm,mlp]

A store of random vectors whose classes a linear rule decides, with noise: 960 MB of float32, or 240 MB with --quick.
Each fit runs in a process of its own; `own_mib` is its peak less that of a fit on the first 500 rows. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from bertfeat.choices import Level
from bertfeat.durable.records import hash_of_json
from bertfeat.records import (
    Column,
    FeatureColumn,
    FileSlice,
    InputFile,
    LevelSchema,
    LevelTable,
    ModelInfo,
    Plan,
    ShardResult,
    ShardSpec,
)
from bertfeat.store.writer import open_for_writing

DIM = 384
N_CLASSES = 5
SHARD_ROWS = 25_000
HEADS = ("logreg", "svm", "ridge", "centroid", "mlp")
FEATURE = "layer_06"

_FIT = """
import json, resource, sys
import bertfeat
store, dev, head, max_memory, limit = sys.argv[1:]
params = {"max_epochs": 4} if head == "mlp" else {}
probe = bertfeat.fit_probe(
    store, "label", head=head, feature="layer_06", max_memory=int(max_memory), limit=int(limit) or None, **params
)
score = probe.score(dev, bootstrap=False)
print(json.dumps({
    "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10),
    "accuracy": score.scores.accuracy,
    "streamed": probe.training.streamed,
    "seconds": probe.training.seconds,
}))
"""


def make_plan(n_shards: int) -> Plan:
    """Plan a store of `n_shards` shards of one level and one feature."""
    columns = (
        Column("doc_id", "int64", nullable=False),
        Column("text", "string", nullable=False),
        Column("label", "int64", nullable=False),
    )
    feature = FeatureColumn(FEATURE, (6,), "none", DIM)
    fields = {"store_dtype": "float32", "vector_encoding": "array", "layers": [6], "n_shards": n_shards}
    shards = tuple(
        ShardSpec(i, i * SHARD_ROWS, SHARD_ROWS, (FileSlice(0, i * SHARD_ROWS, i * SHARD_ROWS + 1, SHARD_ROWS),))
        for i in range(n_shards)
    )
    metadata = {
        "model": "random",
        "revision": None,
        "family": "bert",
        "weights_sha256": "00",
        "tokenizer_sha256": "11",
        "n_layers": 6,
        "word_pooling": "first",
        "pooling": "mean",
        "include_special_tokens": False,
        "document_context": False,
        "max_length": 128,
        "stride": 32,
        "on_overlong": "window",
        "store_dtype": "float32",
        "compute_dtype": "float32",
    }
    return Plan(
        plan_hash=hash_of_json(fields),
        fields=fields,
        inputs=(InputFile("random", "txt", None, 1, "00"),),
        model=ModelInfo("random", None, "bert", "00", "11", 6, DIM, 128),
        schemas={Level.SENTENCE: LevelSchema(Level.SENTENCE, columns, (feature,))},
        shards=shards,
        metadata=metadata,
    )


def write_store(path: Path, n_shards: int, seed: int) -> int:
    """Write a store of random vectors; return the bytes of its vectors."""
    rule = np.random.default_rng(0).normal(size=(DIM, N_CLASSES)).astype(np.float32)
    plan = make_plan(n_shards)
    with open_for_writing(path, plan) as writer:
        for shard in writer.pending():
            rng = np.random.default_rng((seed, shard.index))
            vectors = rng.normal(size=(shard.n_rows, DIM)).astype(np.float32)
            logits = vectors @ rule + rng.gumbel(scale=10.0, size=(shard.n_rows, N_CLASSES))
            ids = np.arange(shard.first_row, shard.first_row + shard.n_rows)
            columns = {"doc_id": ids, "text": [""] * shard.n_rows, "label": logits.argmax(axis=1)}
            table = LevelTable(Level.SENTENCE, shard.n_rows, columns, {FEATURE: vectors})
            result = ShardResult({Level.SENTENCE: table}, [], {"n_documents": shard.n_rows}, {})
            writer.commit(shard, result)
        writer.complete()
    return n_shards * SHARD_ROWS * DIM * 4


def fit(store: Path, dev: Path, head: str, max_memory: int, limit: int = 0) -> dict[str, Any]:
    """Fit and score in a new process, and return its measurements."""
    command = [sys.executable, "-c", _FIT, str(store), str(dev), head, str(max_memory), str(limit)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def measure(folder: Path, heads: list[str], n_shards: int) -> dict[str, Any]:
    """Fit each head in memory and streamed."""
    n_bytes = write_store(folder / "train", n_shards, seed=1)
    write_store(folder / "dev", 1, seed=2)
    budget = n_bytes // 5
    results = {}
    for head in heads:
        least = fit(folder / "train", folder / "dev", head, budget, limit=500)
        streamed = fit(folder / "train", folder / "dev", head, budget)
        whole = fit(folder / "train", folder / "dev", head, 100 * n_bytes)
        for found in (streamed, whole):
            found["own_mib"] = found["peak_mib"] - least["peak_mib"]
        results[head] = {"streamed": streamed, "in_memory": whole, "least_peak_mib": least["peak_mib"]}
    return {"store_mib": n_bytes / 2**20, "max_memory_mib": budget / 2**20, "heads": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--heads", default=",".join(HEADS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), arguments.heads.split(","), 6 if arguments.quick else 25)
    print(json.dumps({"machine": describe_machine(), **result}, indent=1))


if __name__ == "__main__":
    main()
