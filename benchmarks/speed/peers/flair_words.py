"""flair's TransformerWordEmbeddings: the first token of each given word, the last four layers side by side.

flair gives vectors in memory, a word an object; to files they get the writing that a user would add.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flair.data import Sentence
from flair.embeddings import TransformerWordEmbeddings

from benchmarks.speed.peers import Task, read_corpus
from benchmarks.speed.peers.writing import write_features


class Peer:
    """flair, in batches of several sentences."""

    BATCHES = (1, 8, 32)

    def __init__(self, task: Task) -> None:
        if task.output.level != "word":
            raise ValueError("flair gives words only")
        layers = ",".join(str(layer - task.n_layers - 1) for layer in task.layers)
        self._column = next(iter(task.output.columns(task.n_layers)))
        self._embeddings = TransformerWordEmbeddings(
            model=task.model, layers=layers, subtoken_pooling="first", layer_mean=False, fine_tune=False
        )

    def run(self, corpus: Path, output: Path, batch: int) -> None:
        """Encode a corpus to a file."""
        texts = read_corpus(corpus)
        doc_ids, indices, words, vectors = [], [], [], []
        for start in range(0, len(texts), batch):
            sentences = [Sentence(text) for text in texts[start : start + batch]]
            self._embeddings.embed(sentences)
            for number, sentence in enumerate(sentences, start):
                for index, token in enumerate(sentence):
                    doc_ids.append(number)
                    indices.append(index)
                    words.append(token.text)
                    vectors.append(token.embedding.cpu().numpy().astype(np.float16))
                sentence.clear_embeddings()
        keys = {"doc_id": doc_ids, "word_index": indices, "word": words}
        write_features(output, keys, {self._column: np.stack(vectors)})
