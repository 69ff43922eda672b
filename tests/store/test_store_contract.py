"""Golden stores of format 1: they read to the same arrays in every later version.

`tests/support/make_golden_store.py` wrote them; never write them again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from tests.support.make_golden_store import STORES, contents
from tests.support.places import TESTS

DATA = TESTS / "data"
EXPECTED = {name: json.loads((DATA / f"{name}_values.json").read_text()) for name in STORES}
both = pytest.mark.parametrize("name", STORES)


@both
def test_a_store_of_format_1_reads_to_the_same_values(name):
    store, expected = open_store(DATA / name), EXPECTED[name]
    assert (store.manifest.format_version, store.version) == (1, 1)
    assert contents(store) == expected
    assert ",".join(expected) == STORES[name]["levels"]
    assert store.bad_rows()
    before = contents(open_store(DATA / name, version=0))["word"]
    assert before["columns"]["word"] == expected["word"]["columns"]["word"][:-3]
    for feature, vectors in before["vectors"].items():
        assert vectors == expected["word"]["vectors"][feature][:-3]


@both
def test_a_store_of_format_1_is_verified_and_damage_noticed(tmp_path, name):
    root = Path(shutil.copytree(DATA / name, tmp_path / "s"))
    assert verify(root).is_good
    part = next(root.glob("word/*.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert [problem.part for problem in verify(root).problems] == [f"word/{part.name}"]
