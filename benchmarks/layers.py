"""CPU time and peak memory of `bertfeat layers` on random vectors of BERT-base's shape.

`python -m benchmarks.layers ROWS`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

_N_LAYERS, _DIM = 13, 768


def main(n_rows: int) -> None:
    """Make a store of random words, compare its layers on one thread, and print what that took."""
    numbers = np.arange(n_rows)
    with tempfile.TemporaryDirectory() as folder:
        vectors, ids = Path(folder) / "vectors.npy", Path(folder) / "ids.parquet"
        values = np.random.default_rng(0).standard_normal((n_rows, _N_LAYERS, _DIM), np.float32)
        np.save(vectors, values.astype(np.float16))
        words = (numbers * numbers % 997).astype(str)
        pl.DataFrame({"doc_id": numbers // 20, "word_index": numbers % 20, "word": words}).write_parquet(ids)
        bertfeat = [sys.executable, "-m", "bertfeat"]
        store = f"{folder}/store"
        subprocess.run([*bertfeat, "import", vectors, "-o", store, "--level", "word", "--ids", ids], check=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        measure = [*bertfeat, "layers", store, "-o", f"{folder}/layers"]
        subprocess.run(measure, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{n_rows:,} rows: {seconds:.0f} CPU seconds, at most {after.ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main(int(sys.argv[1]))
