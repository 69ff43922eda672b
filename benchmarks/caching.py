"""A cache across runs: a corpus that shares most documents with an earlier one, with the cache and without.

    python -m benchmarks.caching [CORPUS.txt] [--rows 3000] [--shared 0.8] [--rounds 5] [--json FILE]

Lines of a text file; without one, those of examples/data/peps.txt with a number before each. In each round, and in
turns (A B A B ...), the second corpus is extracted without a cache and with a copy of the cache that the first one
filled, and the first corpus without a cache and with an empty one. Each run is timed in one process, from text to a
finished store; the time of a run of one line, which is mostly loading the model, is taken off. The ratio `with loading`
has it in. A ratio is the median of the rounds' ratios. In each round the stores are compared: the rows exactly, and the
vectors within one rounding to float16. Prints the ratios, the tokens that went through the encoder, and JSON.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import report
from benchmarks.measured import ROOT
from bertfeat import Store, extract
from bertfeat.durable.files import sync_path
from bertfeat.plots.tables import markdown_table

WORKLOADS: dict[str, dict[str, Any]] = {
    "sentence, last layer": {"levels": "sentence", "layers": "-1"},
    "sentence, last four": {"levels": "sentence", "layers": "last4", "combine": "concat"},
    "token, last four": {"levels": "token", "layers": "last4", "combine": "concat"},
}


def read_lines(corpus: Path | None, n_rows: int) -> list[str]:
    """Return lines, all of them different: of a corpus, or of the example."""
    lines = (corpus or ROOT / "examples" / "data" / "peps.txt").read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if line.strip()]
    if corpus is not None:
        return list(dict.fromkeys(lines))[:n_rows]
    return [f"{n} {lines[n % len(lines)]}" for n in range(n_rows)]


def n_encoded(store: Store) -> int:
    """Return the tokens that went through the encoder."""
    n_cached = sum(receipt.notes.get("n_cached_tokens", 0) for receipt in store.receipts())
    return int(store.manifest.totals.counts["n_encoded_tokens"]) - n_cached


def assert_equal(store: Store, expected: Store) -> None:
    """Compare the rows exactly, and the vectors within one rounding to float16."""
    assert store.manifest.totals.counts == expected.manifest.totals.counts
    for level in expected.levels:
        names = [feature.name for feature in expected.features(level)]
        assert store.scan(level).drop(names).collect().equals(expected.scan(level).drop(names).collect())
        for name in names:
            found, wanted = (one.numpy(level, name).astype(np.float32) for one in (store, expected))
            np.testing.assert_allclose(found, wanted, rtol=2**-10, atol=1e-4)


def one_round(folder: Path, settings: dict[str, Any]) -> dict[str, float]:
    """Extract each corpus once with the cache and without, compare, and return seconds and tokens."""
    seconds, stores = {}, {}

    def run(name: str, corpus: str, cache: Path | None = None) -> None:
        start = time.perf_counter()
        stores[name] = extract(folder / f"{corpus}.txt", folder / "out" / name, cache=cache, **settings)
        seconds[name] = time.perf_counter() - start

    copy = folder / "copy"
    shutil.copytree(folder / "cache", copy)
    # As after an earlier run: otherwise the run that is timed would wait until the copy is on disk.
    for file in copy.iterdir():
        sync_path(file)
    run("loading", "one")
    run("plain", "second")
    run("cached", "second", copy)
    n_bytes = sum(file.stat().st_size for file in copy.iterdir())
    shutil.rmtree(copy)
    run("first", "first")
    run("filling", "first", copy)
    assert_equal(stores["cached"], stores["plain"])
    assert_equal(stores["filling"], stores["first"])
    tokens = {f"n_tokens_{name}": n_encoded(stores[name]) for name in ("plain", "cached")}
    for path in (copy, folder / "out"):
        shutil.rmtree(path)
    return {**seconds, **tokens, "cache_bytes": n_bytes}


def measured(lines: list[str], shared: float, n_rounds: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the medians of the rounds' ratios, and of their seconds."""
    n_old = int(len(lines) / (2 - shared))
    start = n_old - int(n_old * shared)
    corpora = {"first": lines[:n_old], "second": lines[start : start + n_old], "one": ["one line"]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for corpus, texts in corpora.items():
            (folder / f"{corpus}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        extract(folder / "first.txt", folder / "filled", cache=folder / "cache", **settings)
        rounds = [one_round(folder, settings) for _ in range(n_rounds)]

    def ratio(above: str, below: str, *, loads: bool = False) -> float:
        off = [0.0 if loads else one["loading"] for one in rounds]
        pairs = zip(rounds, off, strict=True)
        return statistics.median((one[above] - less) / (one[below] - less) for one, less in pairs)

    return {
        "ratio": ratio("plain", "cached"),
        "ratio_with_loading": ratio("plain", "cached", loads=True),
        "first_run": ratio("first", "filling"),
        **{name: statistics.median(one[name] for one in rounds) for name in rounds[0]},
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", type=Path)
    parser.add_argument("--rows", type=int, default=3000, help="lines of both corpora together")
    parser.add_argument("--shared", type=float, default=0.8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lines = read_lines(given.corpus, given.rows)
    names = given.workload or WORKLOADS
    results = {name: measured(lines, given.shared, given.rounds, WORKLOADS[name]) for name in names}
    heads = ["ratio", "ratio_with_loading", "first_run", "n_tokens_plain", "n_tokens_cached", "cache_bytes"]
    print(
        markdown_table(["workload", *heads], [[name, *(one[head] for head in heads)] for name, one in results.items()])
    )
    report({"shared": given.shared, "workloads": results}, given.json)


if __name__ == "__main__":
    main()
