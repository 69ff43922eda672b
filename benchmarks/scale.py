"""Scale: the corpus at 1, 10 and 100 times, more processes and Ray, the plan of many files and rows, and many shards.

    python -m benchmarks.scale rates --rows 300       three sizes of corpus: tokens/s of a warm process, peak memory
    python -m benchmarks.scale runners --rows 9000    1, 2 and 4 processes, and Ray, on one corpus, with the same bytes
    python -m benchmarks.scale files --files 100000   the plan of as many small files, and its rerun, step by step
    python -m benchmarks.scale files --files 100000 --whole    then the extraction and the check of the store
    python -m benchmarks.scale rows --rows 5000000    the plan of as many rows, and of a tenth, in two formats
    python -m benchmarks.scale make --shards 4000 --store STORE    makes a store with a row in each shard
    python -m benchmarks.scale shards --store STORE                what opening, reading and checking it costs

Each run is a process of its own; its peak is the kernel's, without its workers. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.memory import peak_mib, write_lines, write_model
from benchmarks.scale_steps import planned, used
from bertfeat.progress import Progress
from bertfeat.records import Receipt

_WORDS_PER_ROW = 12
# With fewer, several workers finish their last shards at once, and the rate means nothing.
_STEADY_SHARDS = 40
_SETTINGS: dict[str, Any] = {"levels": "sentence", "layers": "-1", "shard_bytes": 500_000}
# The size of the corpus, and how often it is extracted in one process: the small one takes half a second.
_SIZES = {1: 8, 10: 1, 100: 1}
_RUNNERS: dict[str, dict[str, Any]] = {
    **{f"{n} local": {"workers": n} for n in (1, 2, 4)},
    "Ray, 2 actors": {"runner": "ray", "ray_address": "local", "workers": 2},
}


class Clock(Progress):
    """Progress that records when the first shard began to be encoded, and when each was done."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.done: list[tuple[float, int]] = []

    def encoded(self, shard: int, n_documents: int, n_tokens: int, n_tokens_in_shard: int) -> None:  # noqa: ARG002
        """Record the beginning."""
        self.began = self.began or time.perf_counter()

    def committed(self, receipt: Receipt) -> None:
        """Record a shard."""
        self.done.append((time.perf_counter(), receipt.counts.get("n_encoded_tokens", 0)))

    @property
    def n_tokens(self) -> int:
        """The tokens of all shards."""
        return sum(n for _, n in self.done)

    def steady_tokens_per_s(self) -> float:
        """Return the rate between a quarter and nine tenths of the shards.

        Then every worker has loaded its model, and none has run out of shards.
        """
        first, last = len(self.done) // 4, len(self.done) * 9 // 10
        return sum(n for _, n in self.done[first + 1 : last + 1]) / (self.done[last][0] - self.done[first][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(_PARTS))
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--shards", type=int, default=4_000)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_CHILDREN[arguments.what](json.loads(arguments.child))))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = _PARTS[arguments.what](arguments, Path(folder))
    # It imports torch, which the peaks of planning must not have.
    from benchmarks.machine import describe_machine

    print(json.dumps({arguments.what: found, "machine": describe_machine()}, indent=2))


def in_child(what: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run a part in a new process and return its figures."""
    command = [sys.executable, "-m", "benchmarks.scale", what, "--child", json.dumps(given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_sentences(path: Path, n_rows: int) -> None:
    """Write rows of a few words each, of the same lengths at every size."""
    from benchmarks.speed.corpora import passages

    words, draw = " ".join(passages(None, 2000)).split(), random.Random(8)
    starts = (draw.randrange(len(words) - _WORDS_PER_ROW) for _ in range(n_rows))
    path.write_text("".join(" ".join(words[at : at + _WORDS_PER_ROW]) + "\n" for at in starts), encoding="utf-8")


def rates(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Compare three sizes of one kind of corpus, in turns."""
    one = folder / "one.txt"
    one.write_text("one line\n", encoding="utf-8")
    for times in _SIZES:
        write_sentences(folder / f"{times}.txt", arguments.rows * times)
    found: dict[int, list[dict[str, Any]]] = {times: [] for times in _SIZES}
    for number, (times, n_runs) in itertools.product(range(arguments.rounds), _SIZES.items()):
        output = str(folder / f"store-{times}-{number}")
        given = {**_SETTINGS, "inputs": str(folder / f"{times}.txt"), "output": output}
        found[times].append(in_child("rates", {**given, "warm_up": str(one), "n_runs": n_runs}))
    return {
        f"{times} x {arguments.rows} rows": {
            "shards": rounds[0]["shards"],
            "tokens_per_s": [round(each["tokens_per_s"]) for each in rounds],
            "rate_to_1": _ratios(rounds, found[1], "tokens_per_s"),
            "rate_to_10": _ratios(rounds, found[10], "tokens_per_s"),
            "peak_mib": [each["peak_mib"] for each in rounds],
            "peak_to_1": _ratios(rounds, found[1], "peak_mib"),
        }
        for times, rounds in found.items()
    }


def _ratios(rounds: list[dict[str, Any]], base: list[dict[str, Any]], name: str) -> float:
    """Return the median of the rounds' ratios."""
    return round(statistics.median(a[name] / b[name] for a, b in zip(rounds, base, strict=True)), 3)


def extracted(given: dict[str, Any]) -> dict[str, Any]:
    """Extract, after a warm-up if one is given; seconds are those of the call, the rate begins at the first pack."""
    import bertfeat

    warm_up, n_runs, output = given.pop("warm_up", None), given.pop("n_runs", 1), given.pop("output")
    if warm_up is not None:
        bertfeat.extract(**{**given, "inputs": warm_up}, output=f"{output}-warm-up")
    n_tokens, encoding, peak = 0, 0.0, 0.0
    for run in range(n_runs):
        clock, start = Clock(), time.perf_counter()
        store = bertfeat.extract(**given, output=f"{output}-{run}" if run else output, progress=clock)
        seconds = time.perf_counter() - start
        n_tokens += clock.n_tokens
        # Worker processes and Ray do not report the first pack.
        encoding += clock.done[-1][0] - (clock.began or start)
        peak = peak or peak_mib()
    found = {"rows": len(store), "shards": len(clock.done), "n_tokens": clock.n_tokens, "seconds": seconds}
    if len(clock.done) >= _STEADY_SHARDS:
        found["steady_tokens_per_s"] = clock.steady_tokens_per_s()
    found |= {"tokens_per_s": n_tokens / encoding, "peak_mib": peak, "worker_peak_mib": peak_mib(of_children=True)}
    return found


def runners(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run one corpus in several numbers of processes and on Ray, in turns."""
    corpus, found = folder / "corpus.txt", {name: [] for name in _RUNNERS}
    write_sentences(corpus, arguments.rows)
    expected: list[bytes] = []
    for number, (name, settings) in itertools.product(range(arguments.rounds), _RUNNERS.items()):
        output = folder / f"store-{number}-{len(found[name])}-{name.replace(', ', '-')}"
        found[name].append(in_child("runners", {**_SETTINGS, **settings, "inputs": str(corpus), "output": str(output)}))
        parts = [path.read_bytes() for path in sorted(output.glob("sentence/part-*"))]
        expected = expected or parts
        assert parts == expected, f"{name}: other bytes"
    first = found[next(iter(_RUNNERS))]
    rate = "steady_tokens_per_s"
    ratios = {name: _ratios(rounds, first, rate) for name, rounds in found.items() if rate in rounds[0]}
    return {name: {"rounds": rounds, "rate_to_1": ratios.get(name)} for name, rounds in found.items()}


def make_model(folder: Path) -> str:
    """Make a tiny model, and plan one line with it, because transformers is imported for the first plan of a model."""
    write_model(folder / "model")
    write_lines(folder / "one.txt", 1)
    given = {"inputs": str(folder / "one.txt"), "model": str(folder / "model"), "output": str(folder / "one")}
    in_child("files", {**given, "what": "plan"})
    return given["model"]


def files(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Plan a corpus of many files of one line, take the plan up again and, if asked, extract and check it.

    The files of a folder are links to one: a disk that reads a million files for the first time takes longer than all
    else.
    """
    model = make_model(folder)
    for first in range(0, arguments.files, 1000):
        place = folder / "corpus" / f"{first:08d}"
        place.mkdir(parents=True)
        one = place / f"{first:08d}.txt"
        one.write_text(f"fox {first}\n", encoding="utf-8")
        for number in range(first + 1, min(first + 1000, arguments.files)):
            (place / f"{number:08d}.txt").hardlink_to(one)
    inputs = str(folder / "corpus" / "*" / "*.txt")
    given = {"inputs": inputs, "model": model, "output": str(folder / "store")}
    names = ["plan", "plan again", *(["extract", "verify"] if arguments.whole else [])]
    return {name: in_child("files", {**given, "what": name}) for name in names}


def rows(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Plan a tenth of a number of rows, and all of them: lines, and rows of Parquet with an id."""
    model, found = make_model(folder), {}
    for n_rows, (name, (write, settings)) in itertools.product((arguments.rows // 10, arguments.rows), _ROWS.items()):
        corpus = folder / f"{n_rows}{name}"
        write(corpus, n_rows)
        given = {"inputs": str(corpus), "model": model, "output": f"{corpus}-store", **settings}
        found[f"{n_rows} rows of {name}"] = in_child("rows", {**given, "what": "plan"})
        corpus.unlink()
    return found


def write_table(path: Path, n_rows: int) -> None:
    """Write a Parquet file of rows of a few words and an id."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_lines(path.with_suffix(".lines"), n_rows)
    with path.with_suffix(".lines").open(encoding="utf-8") as lines, contextlib.ExitStack() as stack:
        writer = None
        for first in range(0, n_rows, 100_000):
            texts = list(itertools.islice(lines, 100_000))
            ids = [f"document-{number:010d}" for number in range(first, first + len(texts))]
            table = pa.table({"id": ids, "text": texts})
            writer = writer or stack.enter_context(pq.ParquetWriter(path, table.schema))
            writer.write_table(table)
    path.with_suffix(".lines").unlink()


def make(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make a store with one row in each shard."""
    write_model(folder / "model")
    write_lines(folder / "corpus.txt", arguments.shards)
    given = {**_SETTINGS, "inputs": str(folder / "corpus.txt"), "output": str(arguments.store)}
    return in_child("make", {**given, "model": str(folder / "model"), "shard_bytes": 1})


def shards(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:  # noqa: ARG001
    """Open, read and check a store of many shards."""
    return in_child("shards", {"store": str(arguments.store)})


_ROWS: dict[str, tuple[Callable[[Path, int], None], dict[str, Any]]] = {
    ".txt": (write_lines, {}),
    ".parquet": (write_table, {"id_column": "id"}),
}
_PARTS = {"rates": rates, "runners": runners, "files": files, "rows": rows, "make": make, "shards": shards}
_CHILDREN = {
    **dict.fromkeys(("rates", "runners", "make"), extracted),
    **dict.fromkeys(("files", "rows"), planned),
    "shards": used,
}


if __name__ == "__main__":
    main()
