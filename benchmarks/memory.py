"""Peak memory of an extraction against the size of its corpus, with a tiny random model.

    python -m benchmarks.memory            one corpus against 20 times as much, and a million short lines
    python -m benchmarks.memory --quick    less of both

Each run is a process of its own; its peak is the kernel's. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertfeat.progress import Progress
from bertfeat.records import Plan, Receipt

_WORDS = "the quick brown fox jumps over a lazy dog near river bank and sells sea shells by shore "


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
        self.peaks["planned"] = peak_mib()

    def committed(self, receipt: Receipt) -> None:
        """Record the peak after each tenth."""
        before = self.n_done * 10 // self.n_total
        self.n_done += self.n_rows[receipt.shard]
        tenth = self.n_done * 10 // self.n_total
        if tenth > before:
            self.peaks[f"{tenth * 10} %"] = peak_mib()


def peak_mib(*, of_children: bool = False) -> float:
    """Return the peak memory of this process or, of its children that have ended, of the largest one."""
    status = Path("/proc/self/status")
    if not of_children and status.exists():
        # `ru_maxrss` is at least what the process had that started this one.
        line = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return round(int(line.split()[1]) / 1024, 1)
    who = resource.RUSAGE_CHILDREN if of_children else resource.RUSAGE_SELF
    # Linux counts in kilobytes, macOS in bytes.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return round(resource.getrusage(who).ru_maxrss / unit, 1)


def write_model(folder: Path) -> None:
    """Save a BERT of two layers, 32 wide, with random weights and a vocabulary of single words and letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*specials, *sorted(set(_WORDS.split())), *"0123456789", *(f"##{digit}" for digit in range(10))]
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), specials, strict=True))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)


def write_lines(path: Path, n_lines: int) -> None:
    words = _WORDS.split()
    with path.open("w") as file:
        for n in range(n_lines):
            file.write(" ".join(words[(n * k) % len(words)] for k in range(1, 4 + n % 7)) + f" {n}\n")


def child(settings: dict[str, Any]) -> None:
    """Extract, and print the peaks and the time."""
    from bertfeat.extraction.run import extract

    peaks = PeakByRows()
    start = time.perf_counter()
    store = extract(**settings, progress=peaks)
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {
                "n_lines": store.plan.n_rows,
                "n_shards": len(store.plan.shards),
                "n_tokens": store.n_rows("token"),
                "bytes": sum(part.n_bytes for part in store.parts("token")),
                "seconds": round(seconds, 1),
                "peak_mib": peak_mib(),
                "peak_mib_at": peaks.peaks,
            }
        )
    )


def measure(folder: Path, name: str, n_lines: int, **settings: Any) -> dict[str, Any]:
    """Run an extraction of this many lines in a new process."""
    corpus, output = folder / f"{name}.txt", folder / name
    write_lines(corpus, n_lines)
    given = {"inputs": str(corpus), "output": str(output), "model": str(folder / "model"), **settings}
    command = [sys.executable, "-m", "benchmarks.memory", "--child", json.dumps(given)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the lines")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(json.loads(arguments.child))
        return
    scale = 10 if arguments.quick else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model")
        shared: dict[str, Any] = {"levels": ["token"], "layers": "-1", "combine": "none"}
        small = measure(folder, "one", 20_000 // scale, shard_bytes=4_000_000 // scale, **shared)
        large = measure(folder, "twenty", 400_000 // scale, shard_bytes=4_000_000 // scale, **shared)
        million = measure(folder, "million", 1_000_000 // scale, max_length=16, **shared)
    print(
        json.dumps(
            {
                "one": small,
                "twenty_times": large,
                "ratio": round(large["peak_mib"] / small["peak_mib"], 3),
                "million_lines": million,
                "command": "python -m benchmarks.memory" + (" --quick" if arguments.quick else ""),
                "machine": {"cpus": os.cpu_count(), "processor": platform.processor() or platform.machine()},
                "versions": {
                    name: version(name) for name in ("bertfeat", "torch", "transformers", "polars", "pyarrow")
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
