"""Small real stores to index, encoded by the packaged MiniLM once for all test modules, and their expected contents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertfeat
from bertfeat.ann.library import faiss
from bertfeat.store.reader import Store
from bertfeat.vectors.nearest import Metric
from tests.support import search_vectors
from tests.support.places import ROOT
from tests.support.store_fakes import write_jsonl

# The command line in a process that kills itself at a step.
_KILLED = """
import sys
from bertfeat.cli import main
from tests.support.runner_fakes import die_at
at = sys.argv.pop(1)
die_at(int(at) if at.isdigit() else at)
main()
"""

# Indexes of some hundred vectors are searched faster on one thread.
faiss.omp_set_num_threads(1)


# Texts that a page may show wrongly: markup, no place to break a line, other directions and scripts.
ODD = [
    "<script>alert(1)</script><img src=http://192.0.2.1/x onerror=alert(2)> & a spring of markup",
    "a spring " + "unbroken" * 40,
    "\u202eturned\u202c  spring\twith \u0645\u0635\u0631\u0641 and \u94f6\u884c",
]


# Two senses of each word, so that a search in context has a right answer.
SENSES = {
    "river": [
        "He sat on the bank of the river and fished.",
        "The boat drifted towards the muddy bank of the stream.",
        "Willows grow along the grassy bank of the canal.",
        "They walked down to the bank, where the water was cold.",
    ],
    "money": [
        "She deposited her savings at the bank in town.",
        "The bank raised its interest rates again.",
        "My bank refused to give me a loan.",
        "He works as a clerk in a large commercial bank.",
    ],
    "season": [
        "In spring the meadows are full of flowers.",
        "Every spring the birds come back from the south.",
        "They married in the spring of last year.",
        "After a long winter, spring came late to the valley.",
    ],
    "coil": [
        "A metal spring pushes the valve shut.",
        "The spring in this mattress is broken.",
        "Compress the spring and release the lever.",
        "The clock is driven by a coiled steel spring.",
    ],
}
PEPS = ROOT / "examples" / "data" / "peps.txt"


def documents(n_peps: int = 40) -> list[dict[str, Any]]:
    """Return rows of a corpus: an id, a text, its sense as `label` (null for lines of the PEPs) and a number."""
    rows = [{"text": text, "label": sense} for sense, texts in SENSES.items() for text in texts]
    rows += [{"text": line, "label": None} for line in PEPS.read_text(encoding="utf-8").splitlines()[:n_peps]]
    return [{"id": f"d{number:03d}", **row, "n": number} for number, row in enumerate(rows)]


def make_store(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Store:
    """Extract rows with the packaged MiniLM."""
    folder.mkdir(parents=True)
    corpus = write_jsonl(folder / "corpus.jsonl", rows)
    columns = {"id_column": "id", "keep_columns": "label,n"}
    asked = {"levels": "token,word,sentence", "layers": "5,6", "combine": "none", "shard_bytes": 2_500_000}
    return bertfeat.extract(corpus, folder / "store", **(columns | asked | settings))


def shared_store(factory: pytest.TempPathFactory) -> Store:
    """Return a store that all modules of a run share and none changes."""
    folder = factory.getbasetemp() / "index-stores"
    if not (folder / "store/manifests/00000.json").exists():
        make_store(folder, documents())
    return bertfeat.open_store(folder / "store")


def brute_force(
    vectors: np.ndarray, queries: np.ndarray, k: int, metric: str, transform: str = "none"
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and positions of the k best vectors, with the transform in float64 from its definition."""
    vectors, queries = vectors.astype(np.float64), queries.astype(np.float64)
    kind, _, dim = transform.partition(":")
    if kind == "truncate":
        vectors, queries = (part[:, : int(dim)] for part in (vectors, queries))
        vectors, queries = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (vectors, queries))
    elif kind != "none":
        mean = vectors.mean(axis=0)
        vectors, queries = vectors - mean, queries - mean
    if kind in ("whiten", "pca"):
        values, axes = np.linalg.eigh(np.cov(vectors.T))
        chosen = np.argsort(values)[::-1][: int(dim) if dim else None]
        axes = axes[:, chosen]
        if kind == "whiten":
            axes = axes / np.sqrt(np.maximum(values[chosen], 1e-7 * values.max()))
        vectors, queries = vectors @ axes, queries @ axes
    return search_vectors.brute_force(vectors, queries, k, Metric(metric))


def tiny_store(folder: Path, model: Path, rows: list[dict[str, Any]] | None = None, **settings: Any) -> Store:
    """Extract rows with a tiny random BERT: quick, and enough for tests that do not depend on meaning."""
    asked = {"model": str(model), "layers": "3", **settings}
    return make_store(folder, documents(8) if rows is None else rows, **asked)


def contents(index: Path) -> dict[str, bytes]:
    """Return the bytes of the files of an index, without `index.json`, which has times."""
    return {path.name: path.read_bytes() for path in sorted(index.iterdir()) if path.name != "index.json"}


def known_store(folder: Path, vectors: list[list[float]]) -> Store:
    """Import these vectors of sentences."""
    file = folder.with_suffix(".npy")
    np.save(file, np.asarray(vectors, np.float32))
    return bertfeat.import_vectors(file, folder, level="sentence", store_dtype="float32")


def run_killed(at: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `bertfeat ARGUMENTS...` in a process that is killed at a step: its number from 1 on, or its name."""
    command = [sys.executable, "-c", _KILLED, at, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
