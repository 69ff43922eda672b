"""Shuffled batches: each row once, in an order that only the arguments decide, also after an interruption."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.store.reader import open_store
from tests.support import store_fakes
from tests.support.places import ROOT
from tests.support.store_fakes import KINDS, make_plan, write_store

SHARDS = (270, 0, 7, 25)
N_ROWS = sum(SHARDS)
# A part of the rows: eight blocks of those that are copied, one or two of those that are decoded.
SMALL = "2MB"


@pytest.fixture(scope="module", params=[(*KINDS[0], False), (*KINDS[3], True)], ids=str)
def store(request, tmp_path_factory):
    dtype, encoding, nulls = request.param
    folder = tmp_path_factory.mktemp("shuffled") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_fakes, "HIDDEN", 4096)
        write_store(
            folder, make_plan(SHARDS, levels=(Level.WORD,), combine="none", dtype=dtype, encoding=encoding), nulls=nulls
        )
    return open_store(folder)


def order_of(batches):
    return np.concatenate([batch.rows for batch in batches]).tolist()


@pytest.mark.parametrize("feature", ["layer_04", "mean_last4"])
@pytest.mark.parametrize("buffer", [1, SMALL, "1GB"])
def test_each_row_comes_once_with_its_vector_and_columns(store, feature, buffer):
    batches = list(store.shuffled("word", feature, batch_size=50, columns=["label", "doc_id"], buffer=buffer))
    assert [len(batch.rows) for batch in batches] == [50] * 6 + [2]
    order = order_of(batches)
    assert sorted(order) == list(range(N_ROWS)) != order
    whole, frame = store.numpy("word", feature), store.polars("word", ["label", "doc_id"])
    for batch in batches:
        np.testing.assert_array_equal(batch.vectors, whole[batch.rows])
        assert batch.columns.equals(frame[batch.rows])


def test_the_order_follows_from_seed_and_epoch_and_not_from_the_size_of_batches(store):
    def order(**settings):
        return order_of(store.shuffled("word", -1, buffer=SMALL, **settings))

    first = order(seed=1)
    assert first == order(seed=1, batch_size=7) == order(seed=1, columns=["word"])
    assert len({tuple(order(seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize("batch_size", [7, 64, N_ROWS, 1000])
def test_an_interrupted_pass_goes_on_with_the_same_batches(store, batch_size):
    settings = {"batch_size": batch_size, "seed": 5, "epoch": 2, "columns": ["word"], "buffer": SMALL}
    whole = list(store.shuffled("word", "concat_last4", **settings))
    for start in (0, 1, len(whole) // 2, len(whole) - 1, len(whole), len(whole) + 3):
        again = list(open_store(store.path).shuffled("word", "concat_last4", start=start, **settings))
        assert len(again) == len(whole[start:])
        for found, expected in zip(again, whole[start:], strict=True):
            assert found.rows.tolist() == expected.rows.tolist()
            np.testing.assert_array_equal(found.vectors, expected.vectors)
            assert found.columns.equals(expected.columns)


def test_rows_that_fit_into_the_buffer_are_uniformly_permuted(tmp_path):
    """Over many seeds, each row of 6 is at each place as often: chi squared of 25 degrees of freedom is below 60."""
    write_store(tmp_path / "s", make_plan((2, 3, 1)))
    store, counts = open_store(tmp_path / "s"), np.zeros((6, 6))
    for seed in range(1200):
        counts[np.arange(6), order_of(store.shuffled("token", "layer_03", seed=seed))] += 1
    assert ((counts - 200) ** 2 / 200).sum() < 60


def test_the_blocks_of_a_buffer_come_from_everywhere(store):
    order = np.array(order_of(store.shuffled("word", "layer_04", buffer=SMALL, seed=4)))
    # Neither the rows nor the blocks are in order, and neighbours are not read one after the other.
    assert np.mean(np.diff(order) == 1) < 0.05
    assert abs(np.corrcoef(order, np.arange(N_ROWS))[0, 1]) < 0.9


def test_no_rows_and_impossible_settings(tmp_path):
    write_store(tmp_path / "s", make_plan((0, 0)))
    store = open_store(tmp_path / "s")
    assert list(store.shuffled("token", "layer_03")) == []
    for name, value in (("batch_size", 0), ("seed", -1), ("epoch", -1), ("start", -1)):
        with pytest.raises(UserError, match=f"`{name}` {value} is below"):
            store.shuffled("token", "layer_03", **{name: value})


MEASURE = """
import json, resource, sys
import bertfeat
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
store = bertfeat.open_store(sys.argv[1])
next(iter(store.shuffled("token", -1, columns=["token"], buffer="1MB")))
before = peak()
n_rows = sum(len(batch.rows) for batch in store.shuffled("token", -1, columns=["token"], buffer="8MB"))
n_rows += sum(len(batch) for batch in store["token"].select("mean_last4", "token").batches())
print(json.dumps([n_rows, peak() - before]))
"""


def test_memory_is_that_of_the_buffers_and_not_of_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(store_fakes, "HIDDEN", 384)
    write_store(tmp_path / "s", make_plan((30_000, 30_000), combine="none"))
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "s")]
    n_rows, n_mb = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout)
    assert n_rows == 120_000
    # A layer has 46 MB, and four are read.
    assert n_mb < 40
