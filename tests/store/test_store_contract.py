"""Golden store of format 1: it reads to the same arrays in every later version.

`tests/data/store_v1` was written by `tests/support/make_store_v1.py`; never write it again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
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
def test_a_store_of_format_1_is_verified_and_damage_noticed(tmp_path, encoding):
    root = Path(shutil.copytree(FOLDER / encoding, tmp_path / "s"))
    assert verify(root).is_good
    part = root / "word/part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert [problem.part for problem in verify(root).problems] == ["word/part-00001.parquet"]


def test_the_committed_values_are_the_features_of_words_and_not_of_zeros():
    """No two rows of the data are equal, and a word lost to truncation has no vector."""
    word = EXPECTED["word"]
    assert word["columns"]["word"][4:9] == ["naïve", "café", "😀", "sea", "shells"]
    vectors = word["vectors"]["concat_01_02"]
    lost = [vector is None for vector in vectors]
    assert 0 < sum(lost) < len(lost)
    kept = np.array([vector for vector in vectors if vector is not None])
    assert kept.shape[1] == 16
    assert len(np.unique(kept, axis=0)) == len(kept)
    assert EXPECTED["sentence"]["columns"]["lang"] == ["en", None, "xx", "en"]
