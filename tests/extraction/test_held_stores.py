"""Stores that are held open while others write: each read gives the rows of the opening, or one error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bertfeat
from bertfeat.errors import StoreError
from bertfeat.store.reader import Store
from tests.support.store_fakes import write_jsonl

pytestmark = [pytest.mark.promise("held"), pytest.mark.usefixtures("one_thread", "no_fsync")]

READS: dict[str, Callable[[Store], Any]] = {
    "numpy": lambda store: store.numpy("sentence", -1),
    "slice": lambda store: store.slice("sentence", -1, 3, 20),
    "take": lambda store: store.take("sentence", -1, [7, 2]),
    "batches": lambda store: [batch.vectors.tolist() for batch in store.batches("sentence", -1, batch_size=9)],
    "rows": lambda store: store.rows("sentence", [5, 1], ["text", "layer_03"]).to_dicts(),
    "polars of vectors": lambda store: store.polars("sentence").to_dicts(),
    "polars of columns": lambda store: store.polars("sentence", ["text"]).to_dicts(),
    "arrow": lambda store: store.arrow("sentence").to_pylist(),
    "valid": lambda store: store.valid("sentence", -1),
    "scan": lambda store: store.scan("sentence").collect().to_dicts(),
    "shard": lambda store: store.shard(0).numpy("sentence", -1),
    "receipts": lambda store: store.receipts(),
    "bad_rows": lambda store: store.bad_rows(),
}
BUILDS: dict[str, Callable[[Store, Any], Any]] = {
    "index": lambda store, output: bertfeat.build_index(store, output / "index", level="sentence"),
    "probe": lambda store, output: bertfeat.fit_probe(store, "label", level="sentence"),
    "export": lambda store, output: bertfeat.export(store, output / "x.npy", to="npy", level="sentence"),
    "layers": lambda store, output: store.layers(level="sentence"),
}


@pytest.fixture
def made(tmp_path, tiny_folder):
    """Make the store, or replace it; `b.jsonl` gives parts of the same size as `a.jsonl`."""
    rows = [{"text": f"one two {n % 7} of the {n:02d}", "label": "ab"[n % 2]} for n in range(40)]
    write_jsonl(tmp_path / "a.jsonl", rows)
    write_jsonl(tmp_path / "b.jsonl", rows[::-1])

    def make(inputs="a.jsonl", **settings):
        settings = {"pooling": "max", "layers": -1, "keep_columns": "label", "levels": "sentence", **settings}
        return bertfeat.extract(tmp_path / inputs, tmp_path / "s", model=str(tiny_folder), **settings)

    return make


@pytest.mark.parametrize("change", [{"pooling": "cls"}, {"inputs": "b.jsonl"}], ids=["settings", "corpus"])
def test_a_store_that_was_replaced_is_never_read_in_place_of_the_one_that_was_opened(tmp_path, made, change):
    made()
    held = {name: bertfeat.open_store(tmp_path / "s") for name in [*READS, *BUILDS]}
    expected = READS["valid"](held["valid"])
    made(**change, overwrite=True)
    for name in set(READS) - {"valid", "receipts", "bad_rows"}:
        # Not only the first time.
        for _ in range(2):
            with pytest.raises((StoreError, FileNotFoundError), match=r"replaced or compacted|[Nn]o such file"):
                READS[name](held[name])
    # Nothing is read for these: the store had no bad rows.
    assert (READS["valid"](held["valid"]) == expected).all()
    assert READS["bad_rows"](held["bad_rows"]) == ()
    for name, build in BUILDS.items():
        with pytest.raises(StoreError, match=r"replaced or compacted|no such file"):
            build(held[name], tmp_path)
    assert not [name for name in ("index", "x.npy") if (tmp_path / name).exists()]


def test_a_pass_ends_where_the_store_is_replaced(tmp_path, made):
    made()
    held = bertfeat.open_store(tmp_path / "s")
    whole, batches = held.numpy("sentence", -1), held.batches("sentence", -1, batch_size=10)
    found = [next(batches).vectors, next(batches).vectors]
    made(pooling="cls", overwrite=True)
    # The part that is open is read to its end.
    with contextlib.suppress(StoreError):
        found += [batch.vectors for batch in batches]
    rows = np.concatenate(found)
    np.testing.assert_array_equal(rows, whole[: len(rows)])


def test_appends_and_the_same_run_leave_a_store_that_is_open_as_it_was(tmp_path, made, tiny_folder):
    made()
    held = {name: bertfeat.open_store(tmp_path / "s") for name in READS}
    before = {name: repr(read(held[name])) for name, read in READS.items()}
    bertfeat.append(tmp_path / "s", tmp_path / "b.jsonl")
    for name, read in READS.items():
        assert repr(read(held[name])) == before[name]
    assert (held["numpy"].version, len(held["numpy"].plan.inputs)) == (0, 1)
    made(overwrite=True)
    for name in set(READS) - {"receipts"}:  # which hold times
        assert repr(READS[name](held[name])) == before[name]
