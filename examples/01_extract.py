"""Lesson 1: extract features once.

You learn to turn a text file into a store: one row per token, with the vectors of the last four layers and their
concatenation, as Parquet. Most of the later lessons read this store.

    python examples/01_extract.py
"""

import sys

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"

# Run it twice: the second call finds the store complete and loads no model.
store = bertfeat.extract("examples/data/peps.txt", folder)

print(store)
print("columns:", ", ".join(store.columns("token")))
print("vectors:", store.numpy("token", "concat_last4").shape)
print("model:  ", store.metadata["model"], store.metadata["weights_sha256"][:12])
