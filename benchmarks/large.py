"""A model of BERT-large's shape (24 layers, 1,024 wide, random weights): peak memory and time, whole and cut.

Runs `bertfeat extract` in a child process for all 24 layers and for `--layers 6`, on the same text, and compares the
stored vectors of some sentences with plain transformers.

    python benchmarks/large.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

import bertfeat
from bertfeat.encoder.packaged import minilm

TEXT = Path(__file__).parent.parent / "examples" / "data" / "peps.txt"
N_LINES = 60


def build(folder: Path) -> None:
    """Write the model with MiniLM's tokenizer, whose vocabulary is BERT's."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=512,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(minilm().folder / name, folder / name)


def run(model: Path, layers: str, corpus: Path, output: Path) -> dict[str, Any]:
    """Extract in a child process; return its peak memory, its wall-clock time and the encoder's."""
    start = time.perf_counter()
    command = [
        str(Path(__file__).parent / "measured.py"),
        "extract",
        str(corpus),
        "-o",
        str(output),
        "--model",
        str(model),
    ]
    command += ["--layers", layers, "--combine", "none", "--level", "sentence", "--include-special-tokens", "--json"]
    done = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True)
    peak = int(done.stderr.splitlines()[-1])
    summary = json.loads(done.stdout)
    return {
        "peak_gb": round(peak / 1e9, 2),
        "seconds": round(time.perf_counter() - start, 1),
        "encode_seconds": round(summary["seconds"]["encode"], 1),
        "tokens_per_s": summary["tokens_per_s"],
    }


def check(model: Path, corpus: Path, output: Path, layers: list[int]) -> float:
    """Return the largest relative difference (Frobenius) from transformers over some sentences and the layers."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    reference = AutoModel.from_pretrained(str(model), add_pooling_layer=False).eval()
    store = bertfeat.open_store(output)
    worst = 0.0
    for row, text in list(enumerate(corpus.read_text(encoding="utf-8").splitlines()))[:5]:
        with torch.no_grad():
            states = reference(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        for layer in layers:
            expected = states[layer][0].mean(dim=0).numpy()
            found = store.numpy("sentence", f"layer_{layer:02d}")[row].astype(np.float32)
            worst = max(worst, float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))
    # The stored type is float16: one rounding is at most 2**-11 of each value.
    assert worst < 2.0**-11 + 1e-5, worst
    return worst


def main() -> None:
    """Run both and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder)
        build(place / "large")
        corpus = place / "corpus.txt"
        corpus.write_text("\n".join(TEXT.read_text(encoding="utf-8").splitlines()[:N_LINES]) + "\n", encoding="utf-8")
        result: dict[str, Any] = {"layers_6": run(place / "large", "6", corpus, place / "six")}
        result["all_layers"] = run(place / "large", "all", corpus, place / "all")
        result["worst_relative_difference"] = {
            "layers_6": check(place / "large", corpus, place / "six", [6]),
            "all_layers": check(place / "large", corpus, place / "all", list(range(25))),
        }
    result["machine"] = describe_machine()
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
