"""The writing that a user of pyarrow would add to a script: one table, one file, then fsync.

It is kind to the peers: no dictionary and no compression, both of which pyarrow does by default and which cost time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_features(path: Path, keys: Mapping[str, Sequence[Any]], vectors: Mapping[str, np.ndarray]) -> None:
    """Write columns and vectors, each (n_rows, dim), as one Parquet file, and sync it to disk."""
    columns: dict[str, Any] = {name: pa.array(values) for name, values in keys.items()}
    for name, values in vectors.items():
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
    with path.open("rb") as file:
        os.fsync(file.fileno())
