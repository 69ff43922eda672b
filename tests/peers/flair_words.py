"""Embed given words with flair and save the vectors: `python flair_words.py MODEL_FOLDER SENTENCES.json OUT.npy`.

It runs in an environment of flair's own, for flair and bertfeat need different versions of transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def main(folder: str, sentences: str, out: str) -> None:
    from flair.data import Sentence
    from flair.embeddings import TransformerWordEmbeddings

    embeddings = TransformerWordEmbeddings(
        model=folder, layers="-4,-3,-2,-1", subtoken_pooling="first", layer_mean=False, fine_tune=False
    )
    vectors = []
    for words in json.loads(Path(sentences).read_text(encoding="utf-8")):
        sentence = Sentence(words)
        embeddings.embed(sentence)
        assert [token.text for token in sentence] == words
        vectors += [token.embedding.cpu().numpy() for token in sentence]
    np.save(out, np.stack(vectors).astype(np.float32))


if __name__ == "__main__":
    main(*sys.argv[1:])
