"""Lesson 3: features of your own character spans.

You learn to join any annotation that has a document and characters to the tokens that it overlaps, and to average
their vectors.

    python examples/03_character_spans.py
"""

import re
import sys
from pathlib import Path

import polars as pl

import bertfeat

corpus = "examples/data/peps.txt"
folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"
store = bertfeat.extract(corpus, folder)

# Here the annotation is every name with an underscore.
texts = Path(corpus).read_text(encoding="utf-8").splitlines()
found = [(row, m.start(), m.end(), m.group()) for row, text in enumerate(texts) for m in re.finditer(r"\w+_\w+", text)]
spans = pl.LazyFrame(found, schema=["doc_id", "start", "end", "mention"], orient="row").with_row_index("span")

tokens = (
    store.scan("token").filter(~pl.col("is_special")).select("doc_id", "char_start", "char_end", "token", "layer_06")
)
overlap = (pl.col("char_start") < pl.col("end")) & (pl.col("char_end") > pl.col("start"))
joined = spans.join(tokens, on="doc_id").filter(overlap).sort("span", "char_start").collect()

for (_, mention), rows in list(joined.group_by("span", "mention", maintain_order=True))[:5]:
    vector = rows["layer_06"].cast(pl.Array(pl.Float32, 384)).to_numpy().mean(axis=0)
    print(f"{mention:<24} {' '.join(rows['token']):<32} mean vector of length {len(vector)}, first {vector[0]:+.3f}")
