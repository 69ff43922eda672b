"""transformers with the texts sorted by their number of tokens, so that little is padded."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.speed.peers import Task, read_corpus
from benchmarks.speed.peers.gathering import Gathered
from benchmarks.speed.peers.transformers_model import TransformersModel, by_length, pad


class Peer:
    """transformers, sorted."""

    BATCHES = (8, 16, 32, 64, 128)

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model = TransformersModel(task)

    def run(self, corpus: Path, output: Path, batch: int) -> None:
        """Encode a corpus to a file; rows are put back in corpus order."""
        texts = read_corpus(corpus)
        tokens = self._model.tokenize(texts)
        ids = tokens["input_ids"]
        gathered = Gathered(self._task, texts, self._model.tokenizer)
        order = by_length(ids)
        for start in range(0, len(order), batch):
            documents = order[start : start + batch]
            padded = pad([ids[i] for i in documents], self._model.tokenizer.pad_token_id)
            states = self._model.states({name: torch.from_numpy(values) for name, values in padded.items()})
            words = [tokens.word_ids(i) for i in documents] if self._task.output.level == "word" else None
            gathered.add(documents, [ids[i] for i in documents], words, states)
        gathered.write(output)
