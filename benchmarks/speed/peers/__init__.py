"""One small file per rival. A rival loads its model once, and then encodes corpora to files.

    class Peer:
        BATCHES = (16, 32, 64)             batch sizes to try; the best of the day is used
        def __init__(self, task): ...      loads the model
        def run(self, corpus, output, batch): ...
        def embed(self, texts, batch): ... where the task is in memory

Peers run in environments of their own, so this package imports nothing but what they have.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.outputs import OUTPUTS, Output

# rival -> module, and its settings
PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bertfeat": ("ours", {}),
    "transformers, corpus order": ("padded", {}),
    "transformers, sorted": ("sorted_batches", {}),
    "transformers, one at a time": ("one_at_a_time", {}),
    "sentence-transformers": ("sentence_transformers_encode", {}),
    "flair": ("flair_words", {}),
    "ONNX Runtime": ("onnx_runtime", {"fused": False}),
    "ONNX Runtime, fused": ("onnx_runtime", {"fused": True}),
    "OpenVINO": ("openvino_engine", {"hint": "LATENCY"}),
    "OpenVINO, streams": ("openvino_engine", {"hint": "THROUGHPUT"}),
    "CTranslate2": ("ctranslate2_engine", {"workers": False}),
    "CTranslate2, workers": ("ctranslate2_engine", {"workers": True}),
}


@dataclass(frozen=True)
class Task:
    """The task of a rival: a model's folder, a key of `OUTPUTS`, and how to run it.

    `scratch` is a folder for what a peer must make before it can run, such as an ONNX file; the time for it does not
    count. `settings` is what `PEERS` says of the rival, and what the run adds.
    """

    model: str
    n_layers: int
    output_name: str
    scratch: str
    device: str
    dtype: str
    max_length: int
    n_heads: int
    hidden_size: int
    settings: dict[str, Any]

    @property
    def output(self) -> Output:
        """What to write."""
        return OUTPUTS[self.output_name]

    @property
    def layers(self) -> tuple[int, ...]:
        """The absolute layers that are needed, ascending."""
        return self.output.absolute(self.n_layers)


def make_peer(name: str, task: Task) -> Any:
    """Load a rival.

    Raises:
        ImportError: Its library is not in this environment.
    """
    return importlib.import_module(f"benchmarks.speed.peers.{PEERS[name][0]}").Peer(task)


def read_corpus(path: Path) -> list[Any]:
    """Return the texts of a .txt file, or the lists of words of a .jsonl file."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line)["text"] for line in lines] if path.suffix == ".jsonl" else lines
