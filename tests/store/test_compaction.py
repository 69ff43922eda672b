"""Compaction: few parts, the same rows and bits."""

from __future__ import annotations

import itertools
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

import bertfeat
from bertfeat.errors import StoreError
from bertfeat.extraction.deep_check import recheck
from bertfeat.extraction.run import append, extract
from bertfeat.store.compaction import compact
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from tests.support.command_line import run_cli
from tests.support.drill import orphans, result_files, three_shards, write_corpus
from tests.support.store_fakes import contents

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def settings(tmp_path_factory, tiny_folder):
    folder = tmp_path_factory.mktemp("corpus")
    made = three_shards(folder, tiny_folder) | {"id_column": None, "levels": ["token", "word", "span", "sentence"]}
    made |= {"inputs": str(write_corpus(folder / "bad.jsonl", 24, bad_every=7)), "bad_rows": "quarantine"}
    # Words that truncation leaves without a vector: null vectors in the parts.
    return made | {"max_length": 6, "on_overlong": "truncate"}


@pytest.fixture(scope="module")
def grown(tmp_path_factory, settings):
    folder = tmp_path_factory.mktemp("grown")
    store = extract(output=folder / "s", **settings)
    for number in range(3):
        store = append(store, str(write_corpus(folder / f"{number}.jsonl", 5 + number)))
    assert len(store.parts("word")) > 5
    return store


def copied(store, folder):
    """Copy a store, which compaction would change."""
    return open_store(shutil.copytree(store.path, folder / "c"))


@pytest.mark.promise("kill-append")
def test_rows_their_order_and_the_bits_of_their_vectors_stay(tmp_path, grown):
    small = compact(copied(grown, tmp_path), shard_bytes="1MB")
    assert {level: len(small.parts(level)) for level in small.levels} == dict.fromkeys(small.levels, 1)
    for level in grown.levels:
        assert small.polars(level).equals(grown.polars(level))
        for feature in grown.features(level):
            assert np.array_equal(small.numpy(level, feature.name), grown.numpy(level, feature.name), equal_nan=True)
            assert np.array_equal(small.valid(level, feature.name), grown.valid(level, feature.name))
    assert not small.valid("word", -1).all()
    assert small.bad_rows() == grown.bad_rows() != ()
    totals = [replace(store.manifest.totals, n_shards=0, n_bytes={}) for store in (small, grown)]
    assert totals[0] == totals[1]
    assert (small.version, small.manifest.first_version, small.manifest.inputs) == (4, 4, grown.manifest.inputs)
    assert verify(small.path).is_good
    assert recheck(small.path).is_good
    assert compact(small, shard_bytes="1MB").version == 4
    assert orphans(small.path) == []


def test_parts_are_filled_up_to_the_size_that_the_store_asks_for(tmp_path, grown):
    sizes = [sum(part.n_bytes for part in shard.parts) for shard in grown.manifest.shards]
    numbers = {shard.first_row: shard.index for plan in grown.plans for shard in plan.shards}
    limit = 5 * max(sizes) // 2
    small = compact(copied(grown, tmp_path), shard_bytes=limit)
    assert 1 < len(small.plan.shards) < len(sizes)
    firsts = [*(numbers[shard.first_row] for shard in small.plan.shards), len(sizes)]
    for start, stop in itertools.pairwise(firsts):
        assert sum(sizes[start:stop]) <= limit
        assert stop == len(sizes) or sum(sizes[start : stop + 1]) > limit


def test_a_compacted_store_grows_and_its_index_is_updated(tmp_path, grown):
    store = copied(grown, tmp_path)
    built = bertfeat.build_index(store, tmp_path / "i", level="sentence", feature=-1, factory="Flat")
    query = np.random.default_rng(0).normal(size=(1, 32)).astype(np.float32)
    expected = built.search(query, k=5)
    code, out, err = run_cli("compact", str(store.path), "--shard-bytes=1MB")
    assert (code, err) == (0, [])
    assert f"{len(store.manifest.shards)} shards became 1 shard\n" in out
    small = open_store(store.path)
    assert bertfeat.open_index(tmp_path / "i").search(query, k=5).equals(expected)
    again = append(small, str(write_corpus(tmp_path / "more.jsonl", 9)))
    assert len(again) == len(grown) + 9
    assert again.polars("sentence")["doc_id"].to_list()[-9:] == list(
        range(grown.manifest.n_next_row, grown.manifest.n_next_row + 9)
    )
    assert verify(small.path).is_good
    index = bertfeat.open_index(tmp_path / "i").update(again)
    hits = index.search(again.numpy("sentence", -1)[-1:].astype(np.float32), k=1)
    assert hits["doc_id"].to_list() == [grown.manifest.n_next_row + 8]


def test_a_damaged_part_is_not_compacted(tmp_path, grown):
    store = copied(grown, tmp_path)
    part = store.path / grown.parts("word")[2].path
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    before = contents(store.path)
    with pytest.raises(StoreError, match=r"part-00002-.*: its bytes are not those that were written"):
        compact(store, shard_bytes="1MB")
    assert contents(store.path).items() >= before.items()


def run_compact(store: str, point: int) -> None:
    from tests.support.runner_fakes import die_at

    die_at(point)
    compact(store)


@pytest.mark.promise("kill-append")
@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_any_step_and_then_the_same_call_gives_the_same_bytes(tmp_path, settings, warm, no_fsync, every):
    store = extract(output=tmp_path / "s", **settings | {"levels": ["word", "span"], "shard_bytes": 40_000})
    store = append(store, str(write_corpus(tmp_path / "a.jsonl", 5)))
    rows = store.polars("word")
    shutil.copytree(store.path, tmp_path / "c")
    whole = result_files(compact(tmp_path / "c").path)
    assert result_files(compact(tmp_path / "c").path) == whole
    point, code = 1, -signal.SIGKILL
    while code == -signal.SIGKILL:
        root = tmp_path / f"killed-{point}"
        shutil.copytree(store.path, root)
        code = warm.run(run_compact, str(root), point)
        assert open_store(root).polars("word").equals(rows)
        compact(root)
        assert result_files(root) == whole
        assert orphans(root) == []
        point += every
    assert code == 0
    assert point > 10
