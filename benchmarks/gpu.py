"""Extraction on a CUDA device against sentence-transformers and plain transformers: text to files on disk.

    python -m benchmarks.gpu [--models bert-base,minilm] [--output STEM]

Sentence embeddings and the last four layers of every token, in bfloat16; `benchmarks/README.md` describes the rounds.
The vectors are asserted equal in the first round. There is no figure yet: none of this was run on a CUDA device so far.
`--device cpu --models tiny --rows 12 --rounds 1` tries the script itself, in float32.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.harness import Setup, run_workload
from benchmarks.speed.models import SHAPES
from benchmarks.speed.report import table, write_report
from benchmarks.speed.workloads import CORPUS_ORDER, ENCODE, SORTED, Entry, Workload

# Rows of the corpus, each of about 65 tokens: enough for a run of ten seconds or more on a large device.
_ROWS = {"minilm": 800_000, "bert-base": 400_000, "bert-large": 120_000, "tiny": 400_000}
_OUTPUTS = {"sentence": (ENCODE, SORTED, CORPUS_ORDER), "token-last4": (SORTED, CORPUS_ORDER)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--models", default="bert-base,bert-large,minilm", help=f"of minilm, {', '.join(SHAPES)}")
    parser.add_argument("--rows", type=int, help="rows of each corpus, instead of a number that suits the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="write OUTPUT.json, .md, .png and .svg")
    arguments = parser.parse_args()
    is_cuda = arguments.device.startswith("cuda")
    if is_cuda and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device here; --device cpu --models tiny --rows 12 tries the script itself")
    how: dict[str, Any] = {"dtype": "bfloat16", "n_warm_tokens": 500_000, "pack_tokens": 65_536} if is_cuda else {}
    setup = Setup(n_rounds=arguments.rounds, device=arguments.device, sweep=is_cuda, **how)
    results = {}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for model in arguments.models.split(","):
            for output, rivals in _OUTPUTS.items():
                name, n_rows = f"gpu-{model}-{output}", _ROWS[model] // (5 if output.startswith("token") else 1)
                print(name, file=sys.stderr)
                place = Path(folder).resolve() / name
                place.mkdir()
                title = f"{model}, {output}, {setup.dtype} on {arguments.device}"
                entries = {rival: Entry(rival) for rival in rivals}
                workload = Workload(title, "passages", output, arguments.rows or n_rows, entries, model=model)
                results[name] = run_workload(workload, place, setup)
                if arguments.output:
                    write_report(results, arguments.output, "python -m benchmarks.gpu " + " ".join(sys.argv[1:]))
    print(table(results))


if __name__ == "__main__":
    main()
