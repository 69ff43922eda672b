"""Golden store of format 1: it reads to the same arrays in every later version.

`tests/data/store` was written by `tests/support/make_golden_store.py`; never write it again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from bertfeat.store import open_store, verify
from tests.support.make_golden_store import contents
from tests.support.places import TESTS

FOLDER = TESTS / "data" / "store"
EXPECTED = json.loads((TESTS / "data" / "store_values.json").read_text())


def test_a_store_of_format_1_reads_to_the_same_values():
    store = open_store(FOLDER)
    assert (store.manifest.format_version, store.version) == (1, 1)
    assert contents(store) == EXPECTED
    assert list(contents(store)) == ["token", "word", "sentence"]
    assert [receipt.n_bad_rows for receipt in store.receipts()] == [0, 0, 0, 1, 0]
    before = contents(open_store(FOLDER, version=0))
    assert before["sentence"]["columns"]["doc_id"] == ["a", "b", "c", "d"]
    assert before["word"]["vectors"]["layer_02"] == EXPECTED["word"]["vectors"]["layer_02"][:-3]


def test_a_store_of_format_1_is_verified_and_damage_noticed(tmp_path):
    root = Path(shutil.copytree(FOLDER, tmp_path / "s"))
    assert verify(root).is_good
    (part,) = root.glob("word/part-00001-*.parquet")
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert [problem.part for problem in verify(root).problems] == [f"word/{part.name}"]


def test_the_committed_values_are_the_features_of_words_and_not_of_zeros():
    """No two rows of the data are equal, and a word lost to truncation has no vector."""
    word = EXPECTED["word"]
    assert word["columns"]["word"][4:9] == ["naïve", "café", "😀", "sea", "shells"]
    vectors = word["vectors"]["layer_02"]
    lost = [vector is None for vector in vectors]
    assert 0 < sum(lost) < len(lost)
    kept = np.array([vector for vector in vectors if vector is not None])
    assert kept.shape[1] == 8
    assert len(np.unique(kept, axis=0)) == len(kept)
    assert EXPECTED["sentence"]["columns"]["lang"] == ["en", None, "xx", "en", "en"]
