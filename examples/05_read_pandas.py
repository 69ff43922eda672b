"""Lesson 5: read a store with pandas.

You learn that each level is a folder of Parquet files, and how a column of vectors becomes a matrix.

    python examples/05_read_pandas.py
"""

import sys

import numpy as np
import pandas as pd

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"
bertfeat.extract("examples/data/peps.txt", folder)

frame = pd.read_parquet(f"{folder}/token", columns=["doc_id", "token", "is_special", "layer_06"])
frame = frame[~frame["is_special"]]
print(frame[["doc_id", "token"]].head())

# Each cell holds one vector; stacked, the column is a matrix.
matrix = np.stack(frame["layer_06"].to_list())
print("matrix:", matrix.shape, matrix.dtype)
