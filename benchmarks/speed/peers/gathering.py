"""Rows in corpus order from the hidden states of padded batches, as in a script on top of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.speed.peers import Task
from benchmarks.speed.peers.writing import write_features

_NUMPY = {"float16": np.float16, "float32": np.float32}


class Gathered:
    """Collector of rows of documents in any order, which writes them in corpus order."""

    def __init__(self, task: Task, texts: Sequence[Any], tokenizer: Any) -> None:
        self._task = task
        self._texts = texts
        self._tokenizer = tokenizer
        self._dtype = _NUMPY[task.output.dtype]
        self._ids: dict[int, Sequence[int]] = {}
        self._vectors: list[dict[int, np.ndarray]] = [{} for _ in texts]

    def add(
        self,
        documents: Sequence[int],
        ids: Sequence[Sequence[int]],
        word_ids: Sequence[Sequence[int | None]] | None,
        states: Mapping[int, torch.Tensor],
    ) -> None:
        """Add a batch.

        Args:
            documents: The numbers of its documents in the corpus.
            ids: Their tokens, without padding.
            word_ids: The word of each token, at word level.
            states: Layer to (n_documents, length, hidden), padded on the right.
        """
        lengths = [len(row) for row in ids]
        for layer in self._task.layers:
            state = states[layer]
            if self._task.output.level == "sentence":
                state = mean_of_tokens(state, lengths)
            values = state.to(torch.float32).cpu().numpy()
            for i, document in enumerate(documents):
                self._vectors[document][layer] = self._rows(values[i], lengths[i], word_ids[i] if word_ids else None)
        self._ids.update(zip(documents, ids, strict=True))

    def _rows(self, values: np.ndarray, length: int, word_ids: Sequence[int | None] | None) -> np.ndarray:
        """Return the rows of one document and layer, copied, so that the batch can be freed."""
        if self._task.output.level == "sentence":
            return values[None].astype(self._dtype)
        if word_ids is None:
            return values[:length].astype(self._dtype)
        firsts = [i for i, word in enumerate(word_ids) if word is not None and word != word_ids[i - 1]]
        return values[firsts].astype(self._dtype)

    def write(self, path: Path) -> None:
        """Write all rows."""
        by_layer = {
            layer: np.concatenate([document[layer] for document in self._vectors]) for layer in self._task.layers
        }
        columns = self._task.output.columns(self._task.n_layers)
        write_features(path, self._keys(), {name: joined(by_layer, layers) for name, layers in columns.items()})

    def _keys(self) -> dict[str, list[Any]]:
        level, n_documents = self._task.output.level, len(self._texts)
        if level == "sentence":
            return {"doc_id": list(range(n_documents)), "text": list(self._texts)}
        if level == "word":
            pieces = list(self._texts)
        else:
            pieces = [self._tokenizer.convert_ids_to_tokens(self._ids[i]) for i in range(n_documents)]
        return {
            "doc_id": [i for i, row in enumerate(pieces) for _ in row],
            f"{level}_index": [i for row in pieces for i in range(len(row))],
            level: [piece for row in pieces for piece in row],
        }


def joined(by_layer: Mapping[int, np.ndarray], layers: Sequence[int]) -> np.ndarray:
    """Return the layers side by side, (n_rows, n_layers * hidden)."""
    return by_layer[layers[0]] if len(layers) == 1 else np.concatenate([by_layer[layer] for layer in layers], axis=1)


def mean_of_tokens(state: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Return the mean of each row's first `lengths` states; state: (n_rows, length, hidden) -> (n_rows, hidden)."""
    n_tokens = torch.tensor(lengths, device=state.device)
    mask = (torch.arange(state.shape[1], device=state.device) < n_tokens[:, None]).to(state.dtype)
    return torch.einsum("nth,nt->nh", state, mask) / n_tokens[:, None].to(state.dtype)
