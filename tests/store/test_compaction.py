"""Compaction: few parts, the same rows and bits."""

from __future__ import annotations

import itertools
import shutil
import signal

import numpy as np
import pytest

import bertfeat
from bertfeat.errors import StoreError
from bertfeat.extraction.deepcheck import recheck
from bertfeat.extraction.run import append, extract
from bertfeat.store import open_store, verify
from bertfeat.store.compaction import compact
from tests.support.cli_runs import run_cli, three_shards
from tests.support.drill import orphans, result_files, write_corpus

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def settings(tmp_path_factory, tiny_folder):
    folder = tmp_path_factory.mktemp("corpus")
    made = three_shards(folder, tiny_folder) | {"id_column": None, "levels": ["token", "word", "sentence"]}
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


def test_rows_their_order_and_the_bits_of_their_vectors_stay(tmp_path, grown):
    small = compact(grown, tmp_path / "c", shard_bytes="1MB")
    assert {level: len(small.parts(level)) for level in small.levels} == dict.fromkeys(small.levels, 1)
    for level in grown.levels:
        assert small.polars(level).equals(grown.polars(level))
        for feature in grown.features(level):
            assert np.array_equal(small.numpy(level, feature.name), grown.numpy(level, feature.name), equal_nan=True)
            assert np.array_equal(small.valid(level, feature.name), grown.valid(level, feature.name))
    assert not small.valid("word", -1).all()
    assert small.bad_rows() == grown.bad_rows() != ()
    assert small.manifest["totals"] | {"n_shards": 0, "n_bytes": 0} == grown.manifest["totals"] | {
        "n_shards": 0,
        "n_bytes": 0,
    }
    assert verify(small.path).is_good
    assert recheck(small.path).is_good
    assert orphans(small.path) == []


def test_parts_are_filled_up_to_the_size_that_the_store_asks_for(tmp_path, settings):
    store = extract(output=tmp_path / "s", **settings | {"shard_bytes": 12_000})
    for number in range(8):
        store = append(store, str(write_corpus(tmp_path / f"{number}.jsonl", 1 + number)))
    small = compact(store, tmp_path / "c", shard_bytes=25_000)
    sizes = [sum(part["n_bytes"] for part in shard["parts"]) for shard in store.manifest["shards"]]
    assert 1 < len(small.plan.shards) < len(sizes)
    numbers = {shard.first_row: shard.index for shard in store.plan.shards}
    firsts = [*(numbers[row] for row in small.plan.fields["compacted"]), len(sizes)]
    for start, stop in itertools.pairwise(firsts):
        assert stop - start == 1 or sum(sizes[start:stop]) <= 25_000
        assert stop == len(sizes) or sum(sizes[start : stop + 1]) > 25_000
    assert small.polars("sentence").equals(store.polars("sentence"))
    assert verify(small.path).is_good


def test_a_compacted_store_grows_and_its_index_is_updated(tmp_path, grown):
    bertfeat.build_index(grown, tmp_path / "i", level="sentence", feature=-1, index="Flat")
    small = compact(grown, tmp_path / "c", shard_bytes="1MB")
    again = append(small, str(write_corpus(tmp_path / "more.jsonl", 9)))
    assert len(again) == len(grown) + 9
    assert again.polars("sentence")["doc_id"].to_list()[-9:] == list(range(grown.plan.n_rows, grown.plan.n_rows + 9))
    assert verify(small.path).is_good
    index = bertfeat.update_index(tmp_path / "i", again)
    hits = index.search(again.numpy("sentence", -1)[-1:].astype(np.float32), k=1)
    assert hits["doc_id"].to_list() == [grown.plan.n_rows + 8]


def test_what_cannot_be_compacted_is_refused(tmp_path, grown):
    with pytest.raises(StoreError, match="is the store to compact; name another folder"):
        compact(grown.path, grown.path, overwrite=True)
    shutil.copytree(grown.path, tmp_path / "s")
    part = tmp_path / "s" / grown.parts("word")[2].path
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreError, match=r"part-00002.parquet: its bytes are not those that were written"):
        compact(tmp_path / "s", tmp_path / "c", shard_bytes="1MB")
    assert not (tmp_path / "c").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.md").write_text("x")
    with pytest.raises(StoreError, match="holds files that are not part of a store"):
        compact(grown, tmp_path / "mine", overwrite=True)


def test_only_all_of_a_finished_store_is_compacted(tmp_path, grown, settings):
    with pytest.raises(StoreError, match="not all of a finished store"):
        compact(grown.shard(1), tmp_path / "c")
    (tmp_path / "none.csv").write_text("text\n")
    empty = extract(output=tmp_path / "empty", **settings | {"inputs": str(tmp_path / "none.csv")})
    assert len(compact(empty, tmp_path / "d")) == 0
    assert verify(tmp_path / "d").is_good


def run_compact(store: str, output: str, point: int) -> None:
    from tests.support.kills import die_at

    die_at(point)
    compact(store, output)


def test_a_kill_at_any_step_and_then_the_same_call_gives_the_same_bytes(tmp_path, settings, warm, no_fsync):
    store = extract(output=tmp_path / "s", **settings | {"levels": ["word"], "shard_bytes": 40_000})
    append(store, str(write_corpus(tmp_path / "a.jsonl", 5)))
    whole = result_files(compact(store.path, tmp_path / "c").path)
    point, code = 1, -signal.SIGKILL
    while code == -signal.SIGKILL:
        root = tmp_path / f"killed-{point}"
        code = warm.run(run_compact, str(store.path), str(root), point)
        compact(store.path, root)
        assert result_files(root) == whole
        assert orphans(root) == []
        point += 1
    assert code == 0
    assert point > 10


def test_the_command_line_compacts(tmp_path, grown):
    code, out, err = run_cli("compact", str(grown.path), f"-o{tmp_path / 'c'}", "--shard-bytes=1MB")
    assert (code, err) == (0, [])
    assert out.endswith(f"{len(grown.plan.shards)} shards became 1 shard\n")
    assert open_store(tmp_path / "c").n_rows("word") == grown.n_rows("word")
    assert run_cli("compact", str(grown.path))[0] == 2
    code, _, err = run_cli("compact", str(grown.path), f"-o{tmp_path / 'd'}", "--shard-bytes=small")
    assert (code, len(err)) == (2, 1)
    assert not (tmp_path / "d").exists()
