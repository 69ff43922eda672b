"""The script that people usually write: corpus order, padded batches of 32, everything in memory, pyarrow."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.peers import Task, read_corpus
from benchmarks.speed.peers.gathering import Gathered
from benchmarks.speed.peers.transformers_model import TransformersModel


class Peer:
    """transformers in corpus order."""

    BATCHES = (32,)

    def __init__(self, task: Task) -> None:
        self._task = task
        self._model = TransformersModel(task)

    def run(self, corpus: Path, output: Path, batch: int) -> None:
        """Encode a corpus to a file."""
        texts = read_corpus(corpus)
        gathered = Gathered(self._task, texts, self._model.tokenizer)
        for start in range(0, len(texts), batch):
            documents = range(start, min(start + batch, len(texts)))
            tokens = self._model.tokenize(texts[start : start + batch], padding=True, return_tensors="pt")
            lengths = tokens["attention_mask"].sum(dim=1).tolist()
            ids = [row[:n] for row, n in zip(tokens["input_ids"].tolist(), lengths, strict=True)]
            words = [tokens.word_ids(i) for i in range(len(ids))] if self._task.output.level == "word" else None
            gathered.add(documents, ids, words, self._model.states(dict(tokens)))
        gathered.write(output)
