"""Maker of `tests/data/store` and `tests/data/store_binary`: run once for format 1, whose output is kept unchanged.

python -m tests.support.make_golden_store FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bertfeat.extraction.run import append, extract
from bertfeat.store.reader import Store
from tests.support.families import build_model

ROWS = (
    {"id": "a", "text": "The quick brown fox", "lang": "en"},
    {"id": "b", "text": "naïve café 😀", "lang": None},
    {"id": "c", "text": "", "lang": "xx"},
    {"id": "d", "text": "sea shells by the sea shore cost 42 pounds today", "lang": "en"},
)


# Each store, and what it has beside the common settings.
STORES: dict[str, dict[str, Any]] = {
    "store": {"levels": "token,word,sentence"},
    "store_binary": {"levels": "word", "vector_encoding": "binary", "combine": "concat", "store_dtype": "float32"},
}


def main() -> None:
    """Write the stores and their expected values, under relative names, so that no path of this machine is stored."""
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "{bad\n")
        Path("more.jsonl").write_text(json.dumps({"id": "e", "text": "one more text", "lang": "en"}) + "\n")
        build_model("bert", Path("tiny"), num_hidden_layers=2, hidden_size=8, intermediate_size=8)
        common: dict[str, Any] = {"model": "tiny", "id_column": "id", "bad_rows": "quarantine", "shard_bytes": 3_000}
        common |= {"layers": "1,2", "max_length": 10, "on_overlong": "truncate"}
        for name, settings in STORES.items():
            kept = {"keep_columns": "lang"} if "sentence" in settings["levels"] else {}
            extract("corpus.jsonl", target / name, **common, **settings, **kept)
            store = append(target / name, "more.jsonl")
            (store.path / "_bertfeat/lock").unlink()
            expected = json.dumps(contents(store), ensure_ascii=False, indent=1) + "\n"
            (target / f"{name}_values.json").write_text(expected)


def contents(store: Store) -> dict[str, Any]:
    """Return every column and vector of a store as plain JSON values; a row without a vector has null."""
    found: dict[str, Any] = {}
    for level in store.levels:
        names = [column.name for column in store.schema(level).columns]
        vectors = {feature.name: store.numpy(level, feature.name) for feature in store.features(level)}
        found[str(level)] = {
            "columns": {name: store.polars(level, [name])[name].to_list() for name in names},
            "vectors": {
                name: [None if np.isnan(row).any() else row.tolist() for row in a] for name, a in vectors.items()
            },
            "dtypes": {name: str(array.dtype) for name, array in vectors.items()},
        }
    return found


if __name__ == "__main__":
    main()
