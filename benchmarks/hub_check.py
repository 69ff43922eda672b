"""Parity of hub models with plain transformers, one text at a time: every layer of every token, in float32 on the CPU.

    python -m benchmarks.hub_check                              the models of the table, on a machine with a network
    python -m benchmarks.hub_check --models minilm ./my-bert    packaged names and local folders too
    python -m benchmarks.hub_check --output hub.json

Prints one table. A model is equal if its tokens are the same, and each layer is within 1e-5 (Frobenius) and 1e-4
absolute of `output_hidden_states`; where a layer has values of hundreds and thousands, as in GPT-2, within 16 roundings
of the greatest. The last column but one is tokens per second from texts to states, of bertfeat over that of
transformers. A model that cannot be reached or is refused is a row with the reason. The exit code is 1 if a model
differs or fails, or if none could be compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import bertfeat
from benchmarks.machine import report
from benchmarks.measured import ROOT
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.entry_points import encoder_of, takes_type_ids
from bertfeat.errors import UserError
from bertfeat.plots.tables import markdown_table

MODELS = {
    "BERT base": "google-bert/bert-base-uncased",
    "BERT large": "google-bert/bert-large-cased",
    "RoBERTa": "FacebookAI/roberta-base",
    "DistilBERT": "distilbert/distilbert-base-uncased",
    "ALBERT": "albert/albert-base-v2",
    "XLNet": "xlnet/xlnet-base-cased",
    "ERNIE": "nghuyong/ernie-2.0-base-en",
    "CamemBERT": "almanach/camembert-base",
    "ELECTRA": "google/electra-base-discriminator",
    "DeBERTa-v3": "microsoft/deberta-v3-base",
    "MPNet": "sentence-transformers/all-mpnet-base-v2",
    "ModernBERT": "answerdotai/ModernBERT-base",
    "GPT-2": "openai-community/gpt2",
    "Qwen3 0.6B": "Qwen/Qwen3-0.6B",
    "E5": "intfloat/e5-base-v2",
    "BGE": "BAAI/bge-base-en-v1.5",
}
_LINES = ROOT / "examples" / "data" / "peps.txt"
_ODD = ("Hm.", "Überraschung: naïve café owners résumé their façade work in Zürich.", "東京 is 100% “fine” – 🙂 #ok")
_COLUMNS = ("model", "commit", "family", "layers", "absolute", "relative", "speed", "verdict")
_RELATIVE, _ABSOLUTE, _ROUNDINGS = 1e-5, 1e-4, 16 * 2.0**-23
EQUAL, DIFFERS, FAILED, REFUSED = "equal", "differs", "failed", "refused"


def read_texts(n_lines: int) -> list[str]:
    """Return texts of one word, of one line, and of up to eight lines."""
    lines = _LINES.read_text(encoding="utf-8").splitlines()[:n_lines]
    return [*_ODD, *lines, *(" ".join(lines[: 2**power]) for power in (1, 2, 3))]


class Reference:
    """Plain transformers: its tokenizer and its model, one text at a time."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.folder)
        assert checkpoint.facts is not None
        model_class = getattr(transformers, checkpoint.facts.model_class)
        self._model = encoder_of(model_class.from_pretrained(checkpoint.folder, dtype=torch.float32).eval())
        # transformers 5 leaves them out for some models that take them, such as XLNet.
        self._options = {"return_tensors": "pt", "return_token_type_ids": takes_type_ids(self._model)}

    def tokens(self, text: str) -> Any:
        """Return the inputs of the model."""
        return self._tokenizer(text, **self._options)

    @torch.inference_mode()
    def states(self, text: str) -> list[torch.Tensor]:
        """Return every layer, each (n_tokens, hidden)."""
        return [state[0] for state in self._model(**self.tokens(text), output_hidden_states=True).hidden_states]


def compare(encoder: bertfeat.Encoder, reference: Reference, texts: Sequence[str]) -> dict[str, Any]:
    """Return the greatest differences of all layers from the reference, and the verdict."""
    frames = encoder.tokens(texts).partition_by("doc_id", maintain_order=True)
    found: list[np.ndarray] = []
    expected: list[np.ndarray] = []
    for text, frame in zip(texts, frames, strict=True):
        if frame["token_id"].to_list() != reference.tokens(text)["input_ids"][0].tolist():
            return {"verdict": f"{DIFFERS}: other tokens in {text!r:.60}"}
        columns = sorted(name for name in frame.columns if name.startswith("layer_"))
        found.append(np.stack([frame[name].to_numpy() for name in columns]).astype(np.float64))
        expected.append(np.stack([state.numpy() for state in reference.states(text)]).astype(np.float64))
    ours, theirs = np.concatenate(found, axis=1), np.concatenate(expected, axis=1)
    greatest = np.abs(ours - theirs).max(axis=(1, 2))
    relative = np.linalg.norm(ours - theirs, axis=(1, 2)) / np.linalg.norm(theirs, axis=(1, 2))
    bounds = np.maximum(_ABSOLUTE, _ROUNDINGS * np.abs(theirs).max(axis=(1, 2)))
    wrong = np.flatnonzero(~((greatest <= bounds) & (relative <= _RELATIVE))).tolist()
    return {
        "layers": len(theirs),
        "tokens": theirs.shape[1],
        "absolute": float(greatest.max()),
        "relative": float(relative.max()),
        "verdict": f"{DIFFERS}: layers {', '.join(map(str, wrong))}" if wrong else EQUAL,
    }


def speed(ours: Callable[[], object], theirs: Callable[[], object], n_rounds: int) -> float:
    """Return how many times as fast the first is, as the median of rounds that take turns."""
    ratios = []
    for _ in range(n_rounds):
        start = time.perf_counter()
        ours()
        middle = time.perf_counter()
        theirs()
        ratios.append((time.perf_counter() - middle) / (middle - start))
    return statistics.median(ratios)


def check_model(name: str, texts: Sequence[str], n_rounds: int) -> dict[str, Any]:
    """Compare one model; return its row."""
    row: dict[str, Any] = {"model": name}
    try:
        checkpoint = open_checkpoint(name)
        row |= {"commit": checkpoint.revision, "family": checkpoint.family.model_type}
        encoder = bertfeat.Encoder(
            name, revision=checkpoint.revision, layers="all", combine="none", device="cpu", compute_dtype="float32"
        )
    except UserError as error:
        return {**row, "verdict": f"{REFUSED}: {error}"}
    # One model must not end the run.
    except Exception as error:
        return {**row, "verdict": failure(error)}
    try:
        reference = Reference(checkpoint)
        fitting = [text for text in texts if reference.tokens(text)["input_ids"].shape[1] <= checkpoint.max_length]
        row |= {"texts": len(fitting), **compare(encoder, reference, fitting)}
        if row["verdict"] == EQUAL:
            row["speed"] = speed(
                lambda: encoder.tokens(fitting), lambda: [reference.states(text) for text in fitting], n_rounds
            )
    except Exception as error:
        row["verdict"] = failure(error)
    return row


def failure(error: Exception) -> str:
    return f"{FAILED}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a table in Markdown."""
    lines = []
    for row in rows:
        shown = {**row, "commit": (row.get("commit") or "")[:10]}
        shown |= {name: f"{row[name]:.1e}" for name in ("absolute", "relative") if name in row}
        shown |= {"speed": f"{row['speed']:.1f}x"} if "speed" in row else {}
        lines.append([shown.get(name, "") for name in _COLUMNS])
    return markdown_table(_COLUMNS, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS.values()), metavar="ID")
    parser.add_argument("--lines", type=int, default=24, help="lines of the corpus")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    asked = parser.parse_args(arguments)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    texts = read_texts(asked.lines)
    rows = []
    for name in asked.models:
        rows.append(check_model(name, texts, asked.rounds))
        print(f"{name}: {rows[-1]['verdict']}", file=sys.stderr, flush=True)
    print(table(rows))
    report({"models": rows}, asked.output)
    verdicts = [row["verdict"] for row in rows]
    return int(EQUAL not in verdicts or any(verdict.startswith((DIFFERS, FAILED)) for verdict in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
