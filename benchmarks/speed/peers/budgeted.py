"""Batches of texts sorted by length, under a budget of tokens, for engines that run a model of their own form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import AutoTokenizer

from benchmarks.speed.peers import Task, read_corpus
from benchmarks.speed.peers.gathering import Gathered
from benchmarks.speed.peers.transformers_model import by_length


class BudgetedPeer(ABC):
    """An engine; the batch size counts tokens, padding included.

    Attributes:
        n_parallel: Batches that the engine works on at once, each called from a thread of its own.
    """

    BATCHES = (256, 512, 1024, 2048, 4096)
    n_parallel = 1

    def __init__(self, task: Task) -> None:
        self.task = task
        self.tokenizer = AutoTokenizer.from_pretrained(task.model)

    @abstractmethod
    def states(self, ids: Sequence[Sequence[int]]) -> Mapping[int, torch.Tensor]:
        """Return the states of each layer of the task, (n_texts, length, hidden), padded on the right."""

    def run(self, corpus: Path, output: Path, batch: int) -> None:
        """Encode a corpus to a file; rows are put back in corpus order."""
        texts = read_corpus(corpus)
        is_split = self.task.output.level == "word"
        tokens = self.tokenizer(texts, truncation=True, max_length=self.task.max_length, is_split_into_words=is_split)
        ids = tokens["input_ids"]
        gathered = Gathered(self.task, texts, self.tokenizer)
        batches = list(_batches(ids, batch))
        with ThreadPoolExecutor(self.n_parallel) as threads:
            found = threads.map(lambda documents: self.states([ids[i] for i in documents]), batches)
            for documents, states in zip(batches, found, strict=True):
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
