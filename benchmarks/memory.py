"""Peak memory of an extraction against the size of its corpus, with a tiny random model.

    python -m benchmarks.memory            one corpus against 20 times as much, and a million short lines
    python -m benchmarks.memory --quick    less of both

Each run is a process of its own; its peak is the kernel's. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

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

    def start(self, plan: Plan, receipts: Any) -> None:  # noqa: ARG002
        """Record the number of rows and the peak of planning."""
        self.n_rows = {shard.index: shard.n_rows for shard in plan.shards}
        self.n_total = plan.n_rows
        self.peaks["planned"] = _mib(peak_bytes())

    def committed(self, receipt: Receipt) -> None:
        """Record the peak after each tenth."""
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
    counts = {"n_lines": peaks.n_total, "n_shards": len(peaks.n_rows), "n_tokens": store.n_rows("token")}
    return {**counts, "bytes": sum(part.n_bytes for part in store.parts("token")), "peak_mib_at": peaks.peaks}


def run(folder: Path, name: str, n_lines: int, **settings: Any) -> dict[str, Any]:
    """Extract this many lines in a new process."""
    corpus = folder / f"{name}.txt"
    words = _TEXT.split()
    with corpus.open("w") as file:
        for n in range(n_lines):
            file.write(" ".join(words[(n * k) % len(words)] for k in range(1, 4 + n % 7)) + f" {n}\n")
    own = {"levels": ["token"], "layers": "-1", "combine": "none", "model": folder / "tiny"}
    found = measure("benchmarks.memory:extracted", inputs=corpus, output=folder / name, **own, **settings)
    return {**found, "peak_mib": _mib(found["peak_bytes"])}


def main() -> None:
    """Run the three corpora."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the lines")
    scale = 10 if parser.parse_args().quick else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        get_model("tiny", folder)
        one = run(folder, "one", 20_000 // scale, shard_bytes=4_000_000 // scale)
        twenty = run(folder, "twenty", 400_000 // scale, shard_bytes=4_000_000 // scale)
        million = run(folder, "million", 1_000_000 // scale, max_length=16)
    ratio = round(twenty["peak_mib"] / one["peak_mib"], 3)
    report({"one": one, "twenty_times": twenty, "ratio": ratio, "million_lines": million})


if __name__ == "__main__":
    main()
