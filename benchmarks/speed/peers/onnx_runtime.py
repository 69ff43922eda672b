"""ONNX Runtime.

The model is exported with the hidden states that are asked for as its outputs, and no others. ONNX Runtime applies all
of its own graph optimizations; `fused` runs its optimizer for transformers over the file first, as its guide says
(attention, GELU and layer norms become one operator each). Export and optimizer are not timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnxruntime
import torch

from benchmarks.speed.peers import Task
from benchmarks.speed.peers.budgeted import BudgetedPeer
from benchmarks.speed.peers.graph import INPUTS, example, load_states
from benchmarks.speed.peers.transformers_model import pad


class Peer(BudgetedPeer):
    """ONNX Runtime, sorted."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        path = str(_export(task))
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._takes = [given.name for given in self._session.get_inputs()]

    def states(self, ids: Sequence[Sequence[int]]) -> dict[int, torch.Tensor]:
        """Return the states of each layer of the task."""
        padded = pad(ids, self.tokenizer.pad_token_id)
        found = self._session.run(None, {name: padded[name] for name in self._takes})
        return dict(zip(self.task.layers, map(torch.from_numpy, found), strict=True))


def _export(task: Task) -> Path:
    """Write the model as ONNX; blocks above the highest layer are cut off; a graph would not run them."""
    path = Path(task.scratch) / f"{task.output_name}-{'fused' if task.settings['fused'] else 'plain'}.onnx"
    if path.exists():
        return path
    outputs = [f"layer_{layer:02d}" for layer in task.layers]
    torch.onnx.export(
        # The optimizer for transformers finds attention only in its plain form.
        load_states(task, "eager"),
        tuple(example().values()),
        str(path),
        input_names=list(INPUTS),
        output_names=outputs,
        dynamic_axes={name: {0: "n_rows", 1: "length"} for name in (*INPUTS, *outputs)},
        opset_version=17,
        dynamo=False,
    )
    if task.settings["fused"]:
        from onnxruntime.transformers.optimizer import optimize_model

        fused = optimize_model(str(path), model_type="bert", num_heads=task.n_heads, hidden_size=task.hidden_size)
        if not fused.get_fused_operator_statistics()["Attention"]:
            raise RuntimeError("the optimizer for transformers fused no attention; its result cannot be compared")
        fused.save_model_to_file(str(path))
    return path
