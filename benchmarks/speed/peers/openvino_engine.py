"""OpenVINO: one stream (its hint for latency), or as many as it chooses (its hint for throughput).

The model is converted from PyTorch with the hidden states that are asked for as its outputs. int8 is NNCF's
quantization after training, with its settings for transformers, calibrated on texts of the corpus itself, which favours
it. Neither is timed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino
import torch

from benchmarks.speed.peers import Task, read_corpus
from benchmarks.speed.peers.budgeted import BudgetedPeer
from benchmarks.speed.peers.graph import INPUTS, example, load_states
from benchmarks.speed.peers.transformers_model import pad

_PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
_N_CALIBRATION = 300


class Peer(BudgetedPeer):
    """OpenVINO, sorted."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        hint = task.settings["hint"]
        settings = {"INFERENCE_PRECISION_HINT": _PRECISIONS[task.dtype], "PERFORMANCE_HINT": hint}
        self._compiled = openvino.Core().compile_model(self._model(), "CPU", settings)
        self.n_parallel = self._compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self._own = threading.local()

    def states(self, ids: Sequence[Sequence[int]]) -> dict[int, torch.Tensor]:
        """Return the states of each layer of the task."""
        if not hasattr(self._own, "request"):
            self._own.request = self._compiled.create_infer_request()
        found = self._own.request.infer(self._inputs(ids))
        return {layer: torch.from_numpy(found[place].copy()) for place, layer in enumerate(self.task.layers)}

    def _inputs(self, ids: Sequence[Sequence[int]]) -> list[Any]:
        padded = pad(ids, self.tokenizer.pad_token_id)
        return [padded[name] for name in INPUTS]

    def _model(self) -> Any:
        path = Path(self.task.scratch) / f"{self.task.output_name}-{self.task.dtype}-openvino.xml"
        if not path.exists():
            model = openvino.convert_model(load_states(self.task, "sdpa"), example_input=example())
            if self.task.dtype == "int8":
                model = self._quantized(model)
            openvino.save_model(model, path, compress_to_fp16=False)
        return openvino.Core().read_model(path)

    def _quantized(self, model: Any) -> Any:
        import nncf

        texts = read_corpus(Path(self.task.settings["corpus"]))
        some = texts[:: max(1, len(texts) // _N_CALIBRATION)][:_N_CALIBRATION]
        ids = self.tokenizer(some, truncation=True, max_length=self.task.max_length)["input_ids"]
        samples = nncf.Dataset([self._inputs([row]) for row in ids])
        return nncf.quantize(model, samples, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(ids))
