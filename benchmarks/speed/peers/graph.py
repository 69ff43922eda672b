"""The part of a model that engines turn into a graph: token ids in, the layers that are asked for out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModel

from benchmarks.speed.peers import Task

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class States(torch.nn.Module):
    """A model whose outputs are hidden states; blocks above the highest are cut off when a graph is made of it."""

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.layers = layers

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the states, each (n_texts, length, hidden)."""
        found = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            output_hidden_states=True,
        ).hidden_states
        return tuple(found[layer] for layer in self.layers)


def load_states(task: Task, attention: str) -> States:
    """Load a task's model."""
    model = AutoModel.from_pretrained(task.model, attn_implementation=attention, add_pooling_layer=False)
    return States(model.eval(), task.layers)


def example() -> dict[str, torch.Tensor]:
    """Return inputs of two texts, one of them padded."""
    ids = torch.ones(2, 16, dtype=torch.long)
    mask = ids.clone()
    mask[1, 10:] = 0
    return dict(zip(INPUTS, (ids, mask, torch.zeros_like(ids)), strict=True))
