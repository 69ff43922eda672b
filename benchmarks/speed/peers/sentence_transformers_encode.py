"""sentence-transformers: `encode` to sentence embeddings, or to the last layer's states of every token.

Both are vectors in memory. To files they get the writing that a user would add. The model's own last step, which
divides sentence embeddings by their length, is left out for all rivals alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from benchmarks.speed.peers import Task, read_corpus
from benchmarks.speed.peers.writing import write_features


class Peer:
    """`SentenceTransformer.encode`; it sorts by length itself."""

    BATCHES = (8, 16, 32, 64, 128)

    def __init__(self, task: Task) -> None:
        if task.layers != (task.n_layers,) or task.output.level == "word":
            raise ValueError("sentence-transformers gives the last layer only, of tokens or sentences")
        self._task = task
        model_kwargs = {"dtype": getattr(torch, task.dtype)}
        module = Transformer(task.model, model_kwargs=model_kwargs, max_seq_length=task.max_length)
        modules = [module, Pooling(module.get_embedding_dimension(), "mean")]
        self._model = SentenceTransformer(modules=modules, device=task.device)
        self._name = f"layer_{task.n_layers:02d}"

    def embed(self, texts: Sequence[str], batch: int) -> np.ndarray:
        """Return sentence embeddings, (n_texts, hidden)."""
        return self._model.encode(list(texts), batch_size=batch, show_progress_bar=False)

    def run(self, corpus: Path, output: Path, batch: int) -> None:
        """Encode a corpus to a file."""
        texts = read_corpus(corpus)
        if self._task.output.level == "sentence":
            keys: dict[str, list[Any]] = {"doc_id": list(range(len(texts))), "text": texts}
            write_features(output, keys, {self._name: self.embed(texts, batch)})
            return
        states = self._model.encode(
            texts, batch_size=batch, output_value="token_embeddings", convert_to_numpy=False, show_progress_bar=False
        )
        vectors = np.concatenate([state.cpu().float().numpy().astype(np.float16) for state in states])
        # `encode` does not say which tokens the states belong to: they are counted and named once more.
        ids = self._model.tokenizer(texts, truncation=True, max_length=self._task.max_length)["input_ids"]
        keys = {
            "doc_id": [i for i, row in enumerate(ids) for _ in row],
            "token_index": [i for row in ids for i in range(len(row))],
            "token": [token for row in ids for token in self._model.tokenizer.convert_ids_to_tokens(row)],
        }
        write_features(output, keys, {self._name: vectors})
