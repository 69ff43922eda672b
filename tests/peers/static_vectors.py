"""Vectors of gensim or model2vec: `python static_vectors.py gensim|model2vec MODEL CORPUS.json OUT.npy`.

It runs in an environment that has the library. CORPUS.json has lists of words (gensim) or texts (model2vec).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def of_gensim(model: str, sentences: list[list[str]], out: Path) -> None:
    from gensim.models import KeyedVectors

    binary, header = model.endswith(".bin"), not model.endswith("glove.txt")
    vectors = KeyedVectors.load_word2vec_format(model, binary=binary, no_header=not header)
    none = np.full(vectors.vector_size, np.nan, np.float32)
    rows = [vectors[word] if vectors.has_index_for(word) else none for words in sentences for word in words]
    np.save(out, np.stack(rows).astype(np.float32))
    known = [[word for word in words if word in vectors] for words in sentences]
    means = [vectors.get_mean_vector(words, pre_normalize=False) if words else none for words in known]
    np.save(out.with_suffix(".means.npy"), np.stack(means).astype(np.float32))


def of_model2vec(model: str, texts: list[str], out: Path) -> None:
    from model2vec import StaticModel

    np.save(out, StaticModel.from_pretrained(model).encode(texts).astype(np.float32))


def main(library: str, model: str, corpus: str, out: str) -> None:
    given = json.loads(Path(corpus).read_text(encoding="utf-8"))
    {"gensim": of_gensim, "model2vec": of_model2vec}[library](model, given, Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
