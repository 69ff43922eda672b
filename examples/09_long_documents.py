"""Lesson 9: documents longer than the model takes.

You learn that long documents are cut into windows that overlap, and that each token is kept once.

    python examples/09_long_documents.py
"""

import sys
import tempfile
from pathlib import Path

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-long-features"
lines = Path("examples/data/peps.txt").read_text(encoding="utf-8").splitlines()

with tempfile.TemporaryDirectory() as temporary:
    corpus = Path(temporary, "long.txt")
    corpus.write_text(lines[0] + "\n" + " ".join(lines[:40]) + "\n", encoding="utf-8")
    # A store knows its input by its bytes, not by its path: a second run finds the store complete.
    store = bertfeat.extract(corpus, folder, levels="token,sentence", layers="-1", max_length=128, stride=32)

print(store.polars("sentence", ["doc_id", "n_tokens", "n_windows", "truncated"]))
tokens = store.polars("token", ["doc_id", "is_special"])
print("token rows of the long document:", tokens.filter(tokens["doc_id"] == 1).height, "(two of them special)")
