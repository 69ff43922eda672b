"""ONNX Runtime on batches sorted by length, under a budget of tokens.

The model is exported with the hidden states that are asked for as its outputs, and no others. ONNX Runtime applies all
of its own graph optimizations; `fused` runs its optimizer for transformers over the file first, as its guide says
(attention, GELU and layer norms become one operator each). Export and optimizer are not timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.speed.peers import Task, read_corpus
from benchmarks.speed.peers.gathering import Gathered
from benchmarks.speed.peers.transformers_model import by_length, pad

_INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


class Peer:
    """ONNX Runtime, sorted; the batch size counts tokens, padding included."""

    BATCHES = (256, 512, 1024, 2048, 4096)

    def __init__(self, task: Task) -> None:
        self._task = task
        self._tokenizer = AutoTokenizer.from_pretrained(task.model)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        path = str(_export(task))
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._takes = [given.name for given in self._session.get_inputs()]

    def run(self, corpus: Path, output: Path, batch: int) -> None:
        """Encode a corpus to a file; rows are put back in corpus order."""
        texts = read_corpus(corpus)
        is_split = self._task.output.level == "word"
        tokens = self._tokenizer(texts, truncation=True, max_length=self._task.max_length, is_split_into_words=is_split)
        ids = tokens["input_ids"]
        gathered = Gathered(self._task, texts, self._tokenizer)
        for documents in _batches(ids, batch):
            padded = pad([ids[i] for i in documents], self._tokenizer.pad_token_id)
            found = self._session.run(None, {name: padded[name] for name in self._takes})
            states = dict(zip(self._task.layers, map(torch.from_numpy, found), strict=True))
            words = [tokens.word_ids(i) for i in documents] if is_split else None
            gathered.add(documents, [ids[i] for i in documents], words, states)
        gathered.write(output)


def _batches(ids: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for i in by_length(ids):
        if batch and (len(batch) + 1) * len(ids[batch[0]]) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class _States(torch.nn.Module):
    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.layers = layers

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        found = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            output_hidden_states=True,
        ).hidden_states
        return tuple(found[layer] for layer in self.layers)


def _export(task: Task) -> Path:
    """Write the model as ONNX; blocks above the highest layer are cut off; a graph would not run them."""
    path = Path(task.scratch) / f"{task.output_name}-{'fused' if task.settings['fused'] else 'plain'}.onnx"
    if path.exists():
        return path
    # The optimizer for transformers finds attention only in its plain form.
    model = AutoModel.from_pretrained(task.model, attn_implementation="eager", add_pooling_layer=False).eval()
    ids = torch.ones(2, 16, dtype=torch.long)
    mask = ids.clone()
    mask[1, 10:] = 0
    outputs = [f"layer_{layer:02d}" for layer in task.layers]
    axes = {name: {0: "n_rows", 1: "length"} for name in [*_INPUTS, *outputs]}
    torch.onnx.export(
        _States(model, task.layers),
        (ids, mask, torch.zeros_like(ids)),
        str(path),
        input_names=_INPUTS,
        output_names=outputs,
        dynamic_axes=axes,
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
