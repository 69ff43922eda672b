"""Word features for a CoNLL file: a vector and a label for each annotated word."""

import sys

import numpy as np

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-word-features"
store = bertfeat.extract("examples/data/wnut17_dev.conll", folder, levels="word", layers="-1")

words = store.polars("word", ["doc_id", "word_index", "word", "label"])
vectors = store.numpy("word", "layer_06").astype(np.float32)
print(words.filter(words["label"] != "O").head(8))

# The table and the array have the same rows, so a mask of one selects from the other.
entities = (words["label"] != "O").to_numpy() & store.valid("word", "layer_06")
centre = vectors[entities].mean(axis=0)
scores = vectors @ centre / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(centre))
order = np.argsort(-np.nan_to_num(scores, nan=-1))[:10]
print("closest to the mean entity:", ", ".join(words["word"][order.tolist()]))
