"""Peak memory of an extraction against the size of its corpus, with a tiny random model.

    python -m benchmarks.memory            one corpus against 20 times as much, and a million short lines
    python -m benchmarks.memory --quick    less of both
    python -m benchmarks.memory --spans    tables of 10,000, 300,000 and 3,000,000 spans of 20,000 lines

Each run is a process of its own; its peak is the kernel's. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.machine import report
from benchmarks.measured import measure, peak_bytes
from benchmarks.speed.models import get_model
from bertfeat import Progress, extract
from bertfeat.records import Plan, Receipt

_TEXT = "the quick brown fox jumps over a lazy dog near river bank and sells sea shells by shore"


class PeakByRows(Progress):
    """Progress that records the peak after each tenth of the rows."""

    def __init__(self) -> None:
        self.n_rows: dict[int, int] = {}
        self.n_total = self.n_done = 0
        self.peaks: dict[str, float] = {}
        self.of_workers: dict[str, float] = {}

    def start(self, plan: Plan, receipts: Any) -> None:  # noqa: ARG002
        """Record the number of rows and the peak of planning."""
        self.n_rows = {shard.index: shard.n_rows for shard in plan.shards}
        self.n_total = plan.n_rows
        self.peaks["planned"] = _mib(peak_bytes())

    def committed(self, receipt: Receipt) -> None:
        """Record the peak after each tenth, and those of the workers."""
        for listed in Path("/proc/self/task").glob("*/children"):
            self.of_workers |= {worker: _mib(peak_bytes(worker)) for worker in listed.read_text().split()}
        before = self.n_done * 10 // self.n_total
        self.n_done += self.n_rows[receipt.shard]
        tenth = self.n_done * 10 // self.n_total
        if tenth > before:
            self.peaks[f"{tenth * 10} %"] = _mib(peak_bytes())


def _mib(n_bytes: int) -> float:
    return round(n_bytes / (1 << 20), 1)


def extracted(**settings: Any) -> dict[str, Any]:
    """Extract, and return counts and peaks."""
    peaks = PeakByRows()
    store = extract(**settings, progress=peaks)
    level = store.levels[0]
    counts = {"n_lines": peaks.n_total, "n_shards": len(peaks.n_rows), f"n_{level}s": store.n_rows(level)}
    counts["bytes"] = sum(part.n_bytes for part in store.parts(level))
    return {**counts, "peak_mib_at": peaks.peaks, "peak_mib_of_workers": [*peaks.of_workers.values()]}


def run(folder: Path, name: str, n_lines: int, **settings: Any) -> dict[str, Any]:
    """Extract this many lines in a new process."""
    corpus = folder / f"{name}.txt"
    words = _TEXT.split()
    with corpus.open("w") as file:
        for n in range(n_lines):
            file.write(" ".join(words[(n * k) % len(words)] for k in range(1, 4 + n % 7)) + f" {n}\n")
    own = {"levels": ["token"], "layers": "-1", "combine": "none", "model": folder / "tiny", "overwrite": True}
    found = measure("benchmarks.memory:extracted", inputs=corpus, output=folder / name, **own | settings)
    return {**found, "peak_mib": _mib(found["peak_bytes"])}


def run_spans(folder: Path, n_lines: int, n_spans: int) -> dict[str, Any]:
    """Extract the spans of a table, of lines in no order, from each format with one worker and with two."""
    rng = np.random.default_rng(0)
    start = rng.integers(0, 8, n_spans)
    line = pl.Series("doc_id", rng.integers(0, n_lines, n_spans)).cast(pl.String)
    note = pl.format("annotator {} of row {}", pl.col("row") % 50, "row").alias("note")
    kind = pl.Series("type", np.array(["person", "place", "date", "other"])[rng.integers(0, 4, n_spans)])
    table = pl.DataFrame([line, pl.Series("char_start", start), pl.Series("char_end", start + 4), kind])
    table = table.with_row_index("row").with_columns(note).drop("row")
    found = {}
    for ending, write in (("parquet", table.write_parquet), ("csv", table.write_csv), ("jsonl", table.write_ndjson)):
        write(path := folder / f"spans.{ending}")
        for workers in (1, 2):
            asked = {"levels": ["span"], "spans": path, "workers": workers}
            found[f"{n_spans}, {ending}, {workers}"] = run(folder, "spans", n_lines, **asked)
    return found


def main() -> None:
    """Run the three corpora."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the lines")
    parser.add_argument("--spans", action="store_true", help="tables of spans instead")
    given = parser.parse_args()
    scale = 10 if given.quick else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        get_model("tiny", folder)
        if given.spans:
            sizes = [n // scale for n in (10_000, 300_000, 3_000_000)]
            report(dict(itertools.chain(*(run_spans(folder, 20_000 // scale, n).items() for n in sizes))))
            return
        one = run(folder, "one", 20_000 // scale, shard_bytes=4_000_000 // scale)
        twenty = run(folder, "twenty", 400_000 // scale, shard_bytes=4_000_000 // scale)
        million = run(folder, "million", 1_000_000 // scale, max_length=16)
    ratio = round(twenty["peak_mib"] / one["peak_mib"], 3)
    report({"one": one, "twenty_times": twenty, "ratio": ratio, "million_lines": million})


if __name__ == "__main__":
    main()
