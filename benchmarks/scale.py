"""Scale: the corpus at 1, 10 and 100 times, more processes and Ray, the plan of many files, and stores of many shards.

    python -m benchmarks.scale rates --rows 700       three sizes of corpus: tokens/s without the start, peak memory
    python -m benchmarks.scale runners --rows 10000   1, 2 and 4 processes, and Ray, on one corpus, with the same bytes
    python -m benchmarks.scale files --files 100000   the plan of as many small files: seconds and memory of each step
    python -m benchmarks.scale make --shards 4000 --store STORE    makes a store with a row in each shard
    python -m benchmarks.scale shards --store STORE                what opening, reading and checking it costs

Each run is a process of its own; its peak is the kernel's (`ru_maxrss`), without its workers. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.memory import peak_mib, write_lines, write_model
from benchmarks.speed.corpora import passages
from bertfeat.progress import Silent
from bertfeat.records import Receipt

_WORDS_PER_ROW = 12
# With fewer, several workers finish their last shards at once, and the rate means nothing.
_STEADY_SHARDS = 40
_SETTINGS: dict[str, Any] = {"levels": "sentence", "layers": "-1", "shard_bytes": 2_000_000}
_RUNNERS: dict[str, dict[str, Any]] = {
    **{f"{n} local": {"workers": n} for n in (1, 2, 4)},
    "Ray, 2 actors": {"runner": "ray", "ray_address": "local", "workers": 2},
}


class Clock(Silent):
    """Progress that records when each shard was done."""

    def __init__(self) -> None:
        self.done: list[tuple[float, int]] = []

    def committed(self, receipt: Receipt) -> None:
        """Record a shard."""
        self.done.append((time.perf_counter(), receipt.counts.get("n_encoded_tokens", 0)))

    def tokens_per_s(self) -> float:
        """Return the rate after the first quarter of the shards, when every worker has loaded its model."""
        n_first = max(1, len(self.done) // 4)
        return sum(n for _, n in self.done[n_first:]) / (self.done[-1][0] - self.done[n_first - 1][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(_PARTS))
    parser.add_argument("--rows", type=int, default=700)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=4_000)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_CHILDREN[arguments.what](json.loads(arguments.child))))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = _PARTS[arguments.what](arguments, Path(folder))
    print(json.dumps({arguments.what: found, "machine": describe_machine()}, indent=2))


def in_child(what: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run a part in a new process and return its figures."""
    command = [sys.executable, "-m", "benchmarks.scale", what, "--child", json.dumps(given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_sentences(path: Path, n_rows: int) -> None:
    """Write rows of a few words each, all different, of the same lengths at every size."""
    words, draw = " ".join(passages(None, 2000)).split(), random.Random(8)
    starts = (draw.randrange(len(words) - _WORDS_PER_ROW) for _ in range(n_rows))
    path.write_text("".join(" ".join(words[at : at + _WORDS_PER_ROW]) + "\n" for at in starts), encoding="utf-8")


def rates(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Compare three sizes of one kind of corpus; the small ones are repeated, in turns with a single row."""
    found = []
    for times, n_rounds in ((1, 2), (10, 1), (100, 1)):
        corpus, one = folder / f"corpus-{times}.txt", folder / "one.txt"
        write_sentences(corpus, arguments.rows * times)
        one.write_text("one line\n", encoding="utf-8")
        rounds = []
        for number in range(n_rounds):
            given = [
                {**_SETTINGS, "inputs": str(path), "output": str(folder / f"{times}-{number}-{path.stem}")}
                for path in (one, corpus)
            ]
            alone, whole = (in_child("rates", each) for each in given)
            seconds = whole["seconds"] - alone["seconds"]
            rounds.append({**whole, "start_s": alone["seconds"], "tokens_per_s": whole["n_tokens"] / seconds})
        middle = sorted(rounds, key=lambda each: each["tokens_per_s"])[n_rounds // 2]
        spread, peak = [round(each["tokens_per_s"]) for each in rounds], max(each["peak_mib"] for each in rounds)
        found.append({"times": times, **middle, "all_tokens_per_s": spread, "peak_mib": peak})
    for each in found:
        each["rate_to_one"] = each["tokens_per_s"] / found[0]["tokens_per_s"]
    return found


def extracted(given: dict[str, Any]) -> dict[str, Any]:
    """Extract; the seconds are those of the call."""
    import bertfeat

    clock, start = Clock(), time.perf_counter()
    store = bertfeat.extract(**given, progress=clock)
    seconds = time.perf_counter() - start
    n_tokens = sum(n for _, n in clock.done)
    found = {"rows": len(store), "shards": len(clock.done), "n_tokens": n_tokens, "seconds": seconds}
    if len(clock.done) >= _STEADY_SHARDS:
        found["steady_tokens_per_s"] = clock.tokens_per_s()
    return {**found, "peak_mib": peak_mib()}


def runners(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one corpus in several numbers of processes and on Ray."""
    corpus, found = folder / "corpus.txt", {}
    write_sentences(corpus, arguments.rows)
    expected: list[bytes] = []
    for number, (name, settings) in enumerate(_RUNNERS.items()):
        output = folder / f"store-{number}"
        found[name] = in_child("rates", {**_SETTINGS, **settings, "inputs": str(corpus), "output": str(output)})
        parts = [path.read_bytes() for path in sorted(output.glob("sentence/part-*"))]
        expected = expected or parts
        assert parts == expected, f"{name}: other bytes"
    return found


def files(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Plan a corpus of many files of one line."""
    write_model(folder / "model")
    for first in range(0, arguments.files, 1000):
        place = folder / "corpus" / f"{first:08d}"
        place.mkdir(parents=True)
        for number in range(first, min(first + 1000, arguments.files)):
            (place / f"{number:08d}.txt").write_text(f"fox {number}\n", encoding="utf-8")
    inputs = str(folder / "corpus" / "*" / "*.txt")
    return in_child("files", {"inputs": inputs, "model": str(folder / "model"), "output": str(folder / "store")})


def planned(given: dict[str, Any]) -> dict[str, Any]:
    """Plan a corpus step by step, and write and read its plan."""
    from bertfeat.config import ExtractConfig
    from bertfeat.extraction.job import open_inputs, open_job
    from bertfeat.store import planfile
    from bertfeat.store.writer import open_for_writing

    steps, output = Steps(), Path(given["output"])
    config = ExtractConfig.from_dict({"levels": "sentence", "layers": "-1", "model": given["model"]})
    with contextlib.ExitStack() as stack:
        found = steps.time("list and digest", lambda: stack.enter_context(open_inputs(given["inputs"], output, config)))
        job = steps.time("plan", lambda: open_job(config, found, output, Silent(), overwrite=False))
        steps.time("write the plan", lambda: stack.enter_context(open_for_writing(output, job.plan, overwrite=False)))
        planfile._last = type(planfile._last)()
        steps.time("read the plan", lambda: planfile.read_plan(output))
        n_bytes = (output / "_bertfeat" / "plan.json").stat().st_size
    return {"files": len(found), "shards": len(job.plan.shards), "plan_bytes": n_bytes, "steps": steps.done}


def make(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make a store with one row in each shard."""
    write_model(folder / "model")
    write_lines(folder / "corpus.txt", arguments.shards)
    given = {**_SETTINGS, "inputs": str(folder / "corpus.txt"), "output": str(arguments.store)}
    return in_child("rates", {**given, "model": str(folder / "model"), "shard_bytes": 1})


def shards(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """Open, read and check a store of many shards."""
    return in_child("shards", {"store": str(arguments.store)})


def used(given: dict[str, Any]) -> dict[str, Any]:
    """Use a store step by step."""
    import bertfeat

    path, steps = Path(given["store"]), Steps()
    store = steps.time("open", lambda: bertfeat.open_store(path))
    steps.time("count rows", lambda: len(store))
    steps.time("receipts", lambda: list(store.receipts()))
    steps.time("read a column", lambda: store.numpy("sentence", -1))
    steps.time("scan: one column of text", lambda: store.scan("sentence").select("doc_id").collect())
    steps.time("verify", lambda: bertfeat.verify(path))
    listed = path / "_bertfeat"
    sizes = {"manifest": (path / "manifest.json").stat().st_size, "plan": (listed / "plan.json").stat().st_size}
    return {"shards": len(store.plan.shards), "bytes": sizes, "steps": steps.done}


class Steps:
    """Seconds of steps, and the peak memory after each."""

    def __init__(self) -> None:
        self.done: dict[str, dict[str, float]] = {}

    def time(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call and record it."""
        start = time.perf_counter()
        result = call()
        self.done[name] = {"seconds": round(time.perf_counter() - start, 3), "peak_mib": peak_mib()}
        return result


_PARTS = {"rates": rates, "runners": runners, "files": files, "make": make, "shards": shards}
_CHILDREN = {"rates": extracted, "files": planned, "shards": used}


if __name__ == "__main__":
    main()
