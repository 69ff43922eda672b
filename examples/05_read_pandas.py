"""Read a store with pandas: any level is a folder of Parquet files."""

import sys

import numpy as np
import pandas as pd

import bertfeat

folder = sys.argv[1] if len(sys.argv) > 1 else "demo-features"
bertfeat.extract("examples/data/peps.txt", folder)

frame = pd.read_parquet(f"{folder}/token", columns=["doc_id", "token", "is_special", "layer_06"])
frame = frame[~frame["is_special"]]
print(frame[["doc_id", "token"]].head())

# A cell holds one vector; stacked, the column is a matrix.
matrix = np.stack(frame["layer_06"].to_list())
print("matrix:", matrix.shape, matrix.dtype)
