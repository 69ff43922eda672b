"""Lesson 4: read a store with polars.

You learn to use a lazy frame, which reads only the columns and rows that you need.

    python examples/04_read_polars.py
"""

import sys

import polars as pl

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"
store = bertfeat.extract("examples/data/peps.txt", folder)

frame = store.scan("token")
first = frame.select("doc_id", "token_index", "token", "char_start", "char_end", "layer_06").head(6)
with pl.Config(tbl_hide_dataframe_shape=True, tbl_width_chars=100):
    print(first.collect())

frequent = frame.filter(~pl.col("is_special")).group_by("token").len().sort("len", "token", descending=True).head(5)
print("frequent tokens:", ", ".join(frequent.collect()["token"]))

# The parts are plain Parquet, so polars can also read them without bertfeat.
print("rows:", pl.scan_parquet(f"{folder}/token/*.parquet").select(pl.len()).collect().item())
