"""Extract features once: every token of a text file, the last four layers and their concatenation, as Parquet."""

import sys

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"

# Run it twice: the second call finds the store complete and loads no model.
store = bertfeat.extract("examples/data/peps.txt", folder)

print(store)
print("columns:", ", ".join(store.columns("token")))
print("vectors:", store.numpy("token", "concat_last4").shape)
print("model:  ", store.metadata["model"], store.metadata["weights_sha256"][:12])
