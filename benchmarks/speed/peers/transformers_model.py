"""The model and tokenizer as every script on top of transformers loads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.speed.peers import Task


class TransformersModel:
    """A whole model; hidden states of padded batches."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.tokenizer = AutoTokenizer.from_pretrained(task.model)
        model = AutoModel.from_pretrained(task.model, dtype=getattr(torch, task.dtype))
        self.model = model.to(task.device).eval()

    def tokenize(self, texts: Sequence[Any], **settings: Any) -> Any:
        """Tokenize texts, or lists of words."""
        is_split = self.task.output.level == "word"
        cut = {"truncation": True, "max_length": self.task.max_length}
        return self.tokenizer(list(texts), is_split_into_words=is_split, **cut, **settings)

    @torch.inference_mode()
    def states(self, inputs: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return the hidden states that the task needs, each (n_rows, length, hidden)."""
        layers, on_device = self.task.layers, {name: ids.to(self.task.device) for name, ids in inputs.items()}
        if layers == (self.task.n_layers,):
            return {layers[0]: self.model(**on_device).last_hidden_state}
        found = self.model(**on_device, output_hidden_states=True).hidden_states
        return {layer: found[layer] for layer in layers}


def pad(ids: Sequence[Sequence[int]], padding: int) -> dict[str, np.ndarray]:
    """Lay rows of token ids into arrays, padded on the right."""
    shape = len(ids), max(map(len, ids))
    inputs = {"input_ids": np.full(shape, padding, np.int64), "attention_mask": np.zeros(shape, np.int64)}
    for row, tokens in enumerate(ids):
        inputs["input_ids"][row, : len(tokens)] = tokens
        inputs["attention_mask"][row, : len(tokens)] = 1
    return {**inputs, "token_type_ids": np.zeros(shape, np.int64)}


def by_length(ids: Sequence[Sequence[int]]) -> list[int]:
    """Return the documents' numbers, longest first."""
    return sorted(range(len(ids)), key=lambda i: -len(ids[i]))
