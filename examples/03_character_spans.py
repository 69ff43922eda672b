"""Lesson 3: features of your own character spans.

You learn to store a vector for each span that a pattern finds, and for spans that you bring in a table.

    python examples/03_character_spans.py
"""

import sys
import tempfile
from pathlib import Path

import polars as pl

import bertfeat

corpus = "examples/data/peps.txt"
folder = sys.argv[1] if len(sys.argv) > 1 else "demo-spans"

# A pattern: every name with an underscore. The vector is the mean of the tokens that overlap it.
names = bertfeat.extract(corpus, folder, levels="span", spans=r"\w+_\w+", layers="-1")
print(names.polars("span", ["doc_id", "char_start", "char_end", "text", "n_tokens"]).head(5))
print(names.numpy("span", "layer_06").shape)

# A table: its further columns come along, here a label for a probe.
texts = Path(corpus).read_text(encoding="utf-8").splitlines()
known = [(0, "coding conventions", "topic"), (0, "Python", "language"), (4, "Guido", "person")]
table = pl.DataFrame(
    [
        {"doc_id": row, "char_start": (at := texts[row].index(text)), "char_end": at + len(text), "label": label}
        for row, text, label in known
    ]
)
with tempfile.TemporaryDirectory() as temporary:
    table.write_csv(Path(temporary, "mentions.csv"))
    settings = {"levels": "span", "span_pooling": "ends", "layers": "-1", "limit": 5}
    mentions = bertfeat.extract(corpus, f"{folder}-table", spans=f"{temporary}/mentions.csv", **settings)
    print(mentions.polars("span", ["text", "label"]), mentions.numpy("span", "layer_06").shape)
