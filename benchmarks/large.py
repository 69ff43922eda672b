"""A model of BERT-large's shape (24 layers, 1,024 wide, random weights): peak memory and time, whole and cut.

Extracts all 24 layers and `layers=6` in processes of their own, from the same text, and compares the stored vectors of
some sentences with plain transformers.

    python -m benchmarks.large [--json FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.machine import report
from benchmarks.measured import ROOT, measure
from benchmarks.speed.models import get_model
from bertfeat import extract, open_store

N_LINES, N_COMPARED = 60, 5


def extracted(**settings: Any) -> dict[str, Any]:
    """Extract, and return the seconds in the encoder."""
    store = extract(levels="sentence", combine="none", include_special_tokens=True, **settings)
    return {"encode_s": sum(receipt.seconds["encode"] for receipt in store.receipts())}


def check(model: Path, corpus: Path, output: Path, layers: list[int]) -> float:
    """Return the largest relative difference (Frobenius) from transformers over some sentences and the layers."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    reference = AutoModel.from_pretrained(str(model), add_pooling_layer=False).eval()
    store = open_store(output)
    worst = 0.0
    for row, text in enumerate(corpus.read_text(encoding="utf-8").splitlines()[:N_COMPARED]):
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        model, corpus = get_model("bert-large", folder).folder, folder / "corpus.txt"
        lines = (ROOT / "examples" / "data" / "peps.txt").read_text(encoding="utf-8").splitlines()[:N_LINES]
        corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
        for layers, numbers in (("6", [6]), ("all", list(range(25)))):
            asked = {"inputs": corpus, "output": folder / layers, "model": model, "layers": layers}
            result[layers] = measure("benchmarks.large:extracted", **asked)
            result[layers]["worst_relative_difference"] = check(model, corpus, folder / layers, numbers)
    report(result, arguments.json)


if __name__ == "__main__":
    main()
