"""A store that the first version of the format wrote reads to the same arrays in every later one.

`tests/data/store_v1` was written by `tests/support/make_store_v1.py`; it is never to be written again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from bertfeat.store import open_store, verify
from tests.support.make_store_v1 import contents
from tests.support.places import TESTS

FOLDER = TESTS / "data" / "store_v1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.mark.parametrize("encoding", ["array", "binary"])
def test_a_store_of_format_1_reads_to_the_same_values(encoding):
    store = open_store(FOLDER / encoding)
    assert store.manifest["format_version"] == 1
    assert contents(store) == EXPECTED
    assert list(contents(store)) == ["token", "word", "sentence"]
    assert [receipt.n_bad_rows for receipt in store.receipts()] == [0, 0, 0, 1]


@pytest.mark.parametrize("encoding", ["array", "binary"])
def test_a_store_of_format_1_is_verified_and_what_is_wrong_found(tmp_path, encoding):
    root = Path(shutil.copytree(FOLDER / encoding, tmp_path / "s"))
    assert verify(root).is_good
    part = root / "word/part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert [problem.part for problem in verify(root).problems] == ["word/part-00001.parquet"]


def test_the_committed_values_are_the_features_of_words_and_not_of_zeros():
    """The data are worth comparing with: no two rows are alike, and a word lost to truncation has no vector."""
    word = EXPECTED["word"]
    assert word["columns"]["word"][4:9] == ["naïve", "café", "😀", "sea", "shells"]
    vectors = word["vectors"]["concat_01_02"]
    lost = [vector is None for vector in vectors]
    assert 0 < sum(lost) < len(lost)
    kept = np.array([vector for vector in vectors if vector is not None])
    assert kept.shape[1] == 16
    assert len(np.unique(kept, axis=0)) == len(kept)
    assert EXPECTED["sentence"]["columns"]["lang"] == ["en", None, "xx", "en"]


def test_parts_of_format_1_open_in_other_tools():
    glob = str(FOLDER / "array/sentence/*.parquet")
    expected = np.array([row for row in EXPECTED["sentence"]["vectors"]["layer_02"] if row is not None])
    parts = sorted((FOLDER / "array/sentence").iterdir())
    opened = {
        "polars": pl.read_parquet(glob)["layer_02"].drop_nulls().to_list(),
        "pandas": [x for part in parts for x in pd.read_parquet(part)["layer_02"] if x is not None],
        "duckdb": [
            x for (x,) in duckdb.sql(f"select layer_02 from '{glob}' order by doc_id").fetchall() if x is not None
        ],
        "pyarrow": [x for part in parts for x in pq.read_table(part)["layer_02"].to_pylist() if x is not None],
    }
    for name, rows in opened.items():
        assert np.array_equal(np.array(rows, np.float64), expected), name
