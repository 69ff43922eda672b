"""Shares of a run: `--shards I/N` in several processes gives the store of one."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from bertfeat.errors import ConfigError
from bertfeat.extraction.run import append, extract
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from tests.support.command_line import flags_of, run_cli
from tests.support.drill import orphans, result_files, run_extract, run_killed_at, write_corpus

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")


@pytest.fixture(scope="module")
def settings(tmp_path_factory, glove) -> dict[str, Any]:
    corpus = write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", 60, bad_every=9)
    shared = {"model": str(glove), "id_column": "id", "bad_rows": "quarantine", "levels": "word,span,sentence"}
    return {"inputs": str(corpus), **shared, "layers": "-1", "shard_bytes": 12_000, "chunk": "tokens:3"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings) -> dict[str, bytes]:
    store = extract(output=tmp_path_factory.mktemp("whole") / "s", **settings)
    assert len(store.manifest.shards) > 8
    return result_files(store.path)


def test_shares_in_any_order_make_the_store_of_one_process(tmp_path, settings, whole):
    for share in (3, 1, 2):
        store = extract(output=tmp_path / "s", **settings, shards=f"{share}/3")
        assert {shard.shard % 3 for shard in store.manifest.shards} >= {share - 1}
        assert store.is_complete == (share == 2)
    assert result_files(tmp_path / "s") == whole
    assert orphans(tmp_path / "s") == []
    assert extract(output=tmp_path / "s", **settings, shards="1/3").version == 0


def test_four_shares_at_once_one_of_them_killed_and_run_again(tmp_path, settings, whole, warm):
    root = tmp_path / "s"
    shares = [settings | {"shards": f"{share}/4"} for share in (1, 2, 3, 4)]
    pids = [warm.fork(run_extract, str(root), shares[number]) for number in (0, 2, 3)]
    assert warm.run(run_killed_at, 9, str(root), shares[1]) == -signal.SIGKILL
    assert [warm.wait(pid) for pid in pids] == [0, 0, 0]
    assert not open_store(root, allow_incomplete=True).is_complete
    assert warm.run(run_extract, str(root), shares[1]) == 0
    assert result_files(root) == whole
    assert verify(root).is_good


def test_an_append_is_shared_too(tmp_path, settings):
    store = extract(output=tmp_path / "s", **settings)
    more = tmp_path / "more.jsonl"
    lines = write_corpus(more, 90).read_text().splitlines(keepends=True)[60:]
    more.write_text("".join(lines))
    for share in (1, 2):
        grown = append(tmp_path / "s", str(more), shards=f"{share}/2")
        assert len(grown) == len(store) + (30 if share == 2 else 0)
    assert verify(tmp_path / "s").is_good


def test_what_is_no_share_is_refused_before_anything_is_written(tmp_path, settings):
    for shards in ("0/4", "5/4", "4", ""):
        with pytest.raises(ConfigError, match=rf"`shards` '{shards}' must be I/N, share I of N, from 1/N to N/N"):
            extract(output=tmp_path / "s", **settings, shards=shards)
    command = ("extract", *flags_of(settings), "-o", str(tmp_path / "s"), "--shards", "1/2", "--overwrite")
    code, _, errors = run_cli(*command)
    assert (code, len(errors)) == (2, 1)
    assert "--overwrite does not go with --shards" in errors[0]
    assert not (tmp_path / "s").exists()
