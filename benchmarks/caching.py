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
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import bertfeat
from benchmarks.machine import describe_machine
from bertfeat.durable.files import sync_path
from bertfeat.store.reader import Store

WORKLOADS: dict[str, dict[str, Any]] = {
    "sentence, last layer": {"levels": "sentence", "layers": "-1"},
    "sentence, last four": {"levels": "sentence", "layers": "last4", "combine": "concat"},
    "token, last four": {"levels": "token", "layers": "last4", "combine": "concat"},
}
PEPS = Path(__file__).parent.parent / "examples" / "data" / "peps.txt"


def read_lines(corpus: Path | None, n_rows: int) -> list[str]:
    """Return lines, all of them different: of a corpus, or of the example."""
    if corpus is not None:
        lines = list(dict.fromkeys(line for line in corpus.read_text(encoding="utf-8").split("\n") if line.strip()))
        return lines[:n_rows]
    lines = [line for line in PEPS.read_text(encoding="utf-8").split("\n") if line]
    return [f"{n} {lines[n % len(lines)]}" for n in range(n_rows)]


def timed(text: Path, output: Path, settings: dict[str, Any]) -> tuple[float, Store]:
    """Extract; return the seconds and the store."""
    start = time.perf_counter()
    store = bertfeat.extract(str(text), output, model="minilm", **settings)
    return time.perf_counter() - start, store


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


class Workload:
    """The runs of one workload, in a folder."""

    def __init__(self, folder: Path, lines: list[str], shared: float, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, settings
        n_old = int(len(lines) / (2 - shared))
        n_shared = int(n_old * shared)
        self.first, self.second, self.one = (folder / f"{name}.txt" for name in ("first", "second", "one"))
        self.first.write_text("\n".join(lines[:n_old]) + "\n", encoding="utf-8")
        self.second.write_text("\n".join(lines[n_old - n_shared : 2 * n_old - n_shared]) + "\n", encoding="utf-8")
        self.one.write_text("one line\n", encoding="utf-8")
        self.cache = folder / "cache"
        timed(self.first, folder / "filled", settings | {"cache": self.cache})

    def round(self) -> dict[str, float]:
        """Run each once, compare, and return seconds and tokens."""
        plain, cached, place = self.settings, self.settings | {"cache": self.folder / "copy"}, self.folder / "out"
        shutil.copytree(self.cache, self.folder / "copy")
        # As after an earlier run: otherwise the run that is timed would wait until the copy is on disk.
        for file in (self.folder / "copy").iterdir():
            sync_path(file)
        runs = {"loading": (self.one, plain), "plain": (self.second, plain), "cached": (self.second, cached)}
        found = {name: timed(text, place / name, settings) for name, (text, settings) in runs.items()}
        n_bytes = sum(file.stat().st_size for file in (self.folder / "copy").iterdir())
        shutil.rmtree(self.folder / "copy")
        first = {"first": (self.first, plain), "filling": (self.first, cached)}
        found |= {name: timed(text, place / name, settings) for name, (text, settings) in first.items()}
        shutil.rmtree(self.folder / "copy")
        assert_equal(found["cached"][1], found["plain"][1])
        assert_equal(found["filling"][1], found["first"][1])
        tokens = {f"n_tokens_{name}": n_encoded(found[name][1]) for name in ("plain", "cached")}
        shutil.rmtree(place)
        return {name: seconds for name, (seconds, _) in found.items()} | tokens | {"cache_bytes": n_bytes}


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the medians of the rounds' ratios, and of their seconds."""

    def ratio(above: str, below: str, *, loads: bool = False) -> float:
        off = [0.0 if loads else one["loading"] for one in rounds]
        pairs = zip(rounds, off, strict=True)
        return statistics.median((one[above] - less) / (one[below] - less) for one, less in pairs)

    return {
        "ratio": ratio("plain", "cached"),
        "ratio_with_loading": ratio("plain", "cached", loads=True),
        "first_run": ratio("first", "filling"),
        "seconds": {name: statistics.median(one[name] for one in rounds) for name in rounds[0]},
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", nargs="?", type=Path)
    parser.add_argument("--rows", type=int, default=3000, help="lines of both corpora together")
    parser.add_argument("--shared", type=float, default=0.8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lines = read_lines(given.corpus, given.rows)
    results = {}
    for name in given.workload or WORKLOADS:
        with tempfile.TemporaryDirectory() as folder:
            workload = Workload(Path(folder), lines, given.shared, WORKLOADS[name])
            results[name] = summary([workload.round() for _ in range(given.rounds)])
        found = results[name]
        seconds = found["seconds"]
        print(
            f"{name}: {found['ratio']:.2f} times as fast ({found['ratio_with_loading']:.2f} with loading), "
            f"{seconds['n_tokens_plain']:,.0f} -> {seconds['n_tokens_cached']:,.0f} tokens; "
            f"the first run {found['first_run']:.2f} times as fast; {seconds['cache_bytes'] / 1e6:.0f} MB"
        )
    text = json.dumps({"machine": describe_machine(), "shared": given.shared, "workloads": results}, indent=1)
    if given.json:
        given.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
