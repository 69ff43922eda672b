"""Golden stores of format 1: they read to the same arrays in every later version. They are never written again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from tests.support.places import TESTS

pytestmark = pytest.mark.promise("format")

DATA = TESTS / "data"
both = pytest.mark.parametrize("name", ["store", "store_binary"])


def contents(store):
    """Return every column and vector of a store as plain JSON values; a row without a vector has null."""
    found = {}
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


@both
def test_a_store_of_format_1_reads_to_the_same_values(name):
    store, expected = open_store(DATA / name), json.loads((DATA / f"{name}_values.json").read_text())
    assert (store.manifest.format_version, store.version) == (1, 1)
    assert contents(store) == expected
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
