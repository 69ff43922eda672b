"""Seconds that commands take from start to end, against the plain scripts that people write for the same.

    python -m benchmarks.startup [--rounds 5] [--other CHECKOUT] [--json FILE]

Five short lines, MiniLM. Each command and script is a new process, in turns (A B C A B C ...), with its files in the
page cache, and the digests and the tokenizer of the model in bertfeat's cache, as from the second use of a model on.
The peers of `extract` and `search` are scripts with transformers and faiss; their vectors and hits are compared with
bertfeat's in the same run. `--other` is another checkout, whose figures are shown beside. CPU seconds (user and system)
vary less than the clock's on a busy machine. Prints a table of medians and JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bertfeat
from benchmarks.machine import describe_machine
from bertfeat.encoder.packaged import minilm

HERE = Path(__file__).parents[1]
LINES = (
    "The bank of the river is steep.",
    "She opened an account at the bank.",
    "How are functions named?",
    "Rain fell for three days.",
    "A short line.",
)
QUERY = "money in the bank"
K = 3
PEER_EXTRACT = """
import sys
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

folder, corpus, out = sys.argv[1:]
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
lines = open(corpus, encoding="utf-8").read().splitlines()
with torch.inference_mode():
    batch = tokenizer(lines, padding=True, return_tensors="pt")
    states = model(**batch, output_hidden_states=True).hidden_states
np.save(out, torch.cat(states[-4:], dim=-1)[batch["attention_mask"].bool()].numpy())
"""
PEER_SEARCH = """
import sys
import faiss
import torch
from transformers import AutoModel, AutoTokenizer

folder, index, query, k = sys.argv[1:]
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
with torch.inference_mode():
    batch = tokenizer([query], return_tensors="pt")
    vectors = torch.nn.functional.normalize(model(**batch).last_hidden_state.mean(dim=1))
scores, rows = faiss.read_index(index).search(vectors.numpy(), int(k))
for score, row in zip(scores[0], rows[0]):
    print(row, score)
"""


class Took(NamedTuple):
    """What a process took: seconds by the clock, and of the processors."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """A command, its exit code, what is done before each run, and its peer."""

    arguments: Sequence[str]
    code: int = 0
    before: Callable[[], object] = lambda: None
    peer: Sequence[str] = ()


def take_time(command: Sequence[str], checkout: Path, code: int = 0) -> tuple[Took, str]:
    """Run a process and return what it took and printed."""
    # `-m` puts the current folder first: it must not be a checkout.
    environment = {**os.environ, "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    used, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != code:
        raise SystemExit(f"{command}: ended with {done.returncode}: {done.stderr}")
    return Took(wall_s, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime), done.stdout


def make_cases(folder: Path) -> dict[str, Case]:
    """Write the corpus, the finished store and the indexes, and return what is measured."""
    import faiss

    corpus, store, index, new = folder / "five.txt", folder / "store", folder / "five.index", folder / "new"
    corpus.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    table = folder / "five.csv"
    table.write_text("text,label\none,a\ntwo,b\n", encoding="utf-8")
    bertfeat.extract(corpus, store, levels="sentence", pooling="model", store_dtype="float32")
    bertfeat.build_index(store, index, level="sentence", feature="embedding")
    flat = faiss.IndexFlatIP(384)
    flat.add(bertfeat.open_store(store).numpy("sentence", "embedding"))
    faiss.write_index(flat, str(folder / "flat.faiss"))
    model = str(minilm().folder)
    again = ["extract", str(corpus), "-o", str(store), "--level", "sentence", "--pooling", "model"]
    here = [str(corpus), "-o", str(new)]
    return {
        "extract, five lines": Case(
            ["extract", *here, "--layers", "last4"],
            before=lambda: shutil.rmtree(new, ignore_errors=True),
            peer=["-c", PEER_EXTRACT, model, str(corpus), str(folder / "peer.npy")],
        ),
        "search, one query": Case(
            ["search", str(index), QUERY, "-k", str(K), "--json"],
            peer=["-c", PEER_SEARCH, model, str(folder / "flat.faiss"), QUERY, str(K)],
        ),
        "extract, finished store": Case([*again, "--store-dtype", "float32"]),
        "extract, missing file": Case(["extract", str(folder / "none.txt"), "-o", str(new)], code=2),
        "extract, wrong --text-column": Case(["extract", str(table), "-o", str(new), "--text-column", "body"], code=2),
        "extract, wrong --layers": Case(["extract", *here, "--layers", "last5"], code=2),
        "inspect": Case(["inspect", str(store)]),
        "--help": Case(["--help"]),
    }


def assert_equal(folder: Path, printed: Mapping[tuple[str, str], str]) -> None:
    """Check the vectors and the hits of the last round against those of the peers."""
    ours, peers = bertfeat.open_store(folder / "new").numpy("token", "concat_last4"), np.load(folder / "peer.npy")
    # Stored as float16: one rounding.
    np.testing.assert_allclose(ours.astype(np.float32), peers, atol=1e-4, rtol=2**-11)
    found = [json.loads(line) for line in printed["search, one query", "bertfeat"].splitlines()]
    theirs = [line.split() for line in printed["search, one query", "peer"].splitlines()]
    assert [hit["doc_id"] for hit in found] == [int(row) for row, _ in theirs]
    np.testing.assert_allclose([hit["score"] for hit in found], [float(score) for _, score in theirs], atol=1e-5)


def measure(folder: Path, rounds: int, other: Path | None) -> dict[str, dict[str, Took]]:
    """Return the medians of each case by who ran it, after a round that does not count."""
    cases = make_cases(folder)
    taken: dict[tuple[str, str], list[Took]] = {}
    printed: dict[tuple[str, str], str] = {}
    for number in range(rounds + 1):
        runs: list[tuple[str, str, Sequence[str], Path, int]] = []
        for name, case in cases.items():
            command = ["-m", "bertfeat", *case.arguments]
            runs += [(name, "before", command, other, case.code)] if other else []
            runs += [(name, "bertfeat", command, HERE, case.code)]
            runs += [(name, "peer", case.peer, HERE, 0)] if case.peer else []
        runs.append(("import torch", "peer", ["-c", "import torch"], HERE, 0))
        for name, who, command, checkout, code in runs:
            if name in cases:
                cases[name].before()
            took, printed[name, who] = take_time(command, checkout, code)
            if number:
                taken.setdefault((name, who), []).append(took)
            if (name, who) == ("extract, five lines", "bertfeat"):
                shutil.copytree(folder / "new", folder / "kept", dirs_exist_ok=True)
        shutil.rmtree(folder / "new", ignore_errors=True)
        (folder / "kept").rename(folder / "new")
        assert_equal(folder, printed)
    medians: dict[str, dict[str, Took]] = {}
    for (name, who), tooks in taken.items():
        medians.setdefault(name, {})[who] = Took(*map(statistics.median, zip(*tooks, strict=True)))
    return medians


def print_table(medians: Mapping[str, Mapping[str, Took]]) -> None:
    """Print seconds by the clock, with CPU seconds in brackets."""
    print("| case | before | bertfeat | plain script |\n|---|---:|---:|---:|")
    for name, by in medians.items():
        shown = {who: f"{took.wall_s:.2f} ({took.cpu_s:.2f})" for who, took in by.items()}
        cells = [shown.get(who, "") for who in ("before", "bertfeat", "peer")]
        print("|", " | ".join((name, *cells)), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another checkout, to compare with")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        medians = measure(Path(folder), arguments.rounds, arguments.other)
    print_table(medians)
    seconds = {name: {who: took._asdict() for who, took in by.items()} for name, by in medians.items()}
    result: dict[str, Any] = {"machine": describe_machine(), "rounds": arguments.rounds, "seconds": seconds}
    print(json.dumps(result, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
