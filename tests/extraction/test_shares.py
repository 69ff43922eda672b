"""Shares of a run: `--shards I/N` in several processes gives the store of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bertfeat.errors import ConfigError
from bertfeat.extraction.run import append, extract
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from tests.support.cli_runs import flags, run_cli
from tests.support.drill import orphans, result_files, run_extract, write_corpus
from tests.support.kills import die_at
from tests.support.places import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def settings(tmp_path_factory, tiny_folder) -> dict[str, Any]:
    corpus = write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", 60, bad_every=9)
    shared = {"model": str(tiny_folder), "id_column": "id", "bad_rows": "quarantine", "levels": ["token", "sentence"]}
    return {"inputs": str(corpus), **shared, "layers": "-1", "shard_bytes": 12_000}


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


def run_share(root: str, settings: dict[str, Any], point: int) -> None:
    if point:
        die_at(point)
    run_extract(root, settings)


def test_four_shares_at_once_one_of_them_killed_and_run_again(tmp_path, settings, whole, warm):
    root = tmp_path / "s"
    points = {1: 0, 2: 9, 3: 0, 4: 0}
    pids = [
        warm.fork(run_share, str(root), {**settings, "shards": f"{share}/4"}, point) for share, point in points.items()
    ]
    assert [warm.wait(pid) for pid in pids] == [0, -signal.SIGKILL, 0, 0]
    assert not open_store(root, allow_incomplete=True).is_complete
    assert warm.run(run_share, str(root), {**settings, "shards": "2/4"}, 0) == 0
    assert result_files(root) == whole
    assert verify(root).is_good


def test_the_loop_of_the_example_runs_and_resumes(tmp_path, settings, whole):
    """A process of the loop is killed; the same loop then finishes the run."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = bin_folder / "bertfeat"
    python = f'exec {sys.executable} -m bertfeat "$@"'
    script.write_text('#!/bin/bash\n[ "$KILLED" = "${@: -1}" ] && kill -9 $$\n' + python + "\n")
    script.chmod(0o755)
    path = os.pathsep.join([str(bin_folder), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = ["bash", str(ROOT / "examples/cluster/loop.sh"), "2", *flags(settings), "-o", str(tmp_path / "s")]
    killed = subprocess.run([*command], env={**env, "KILLED": "2/2"}, capture_output=True, text=True, check=False)
    assert killed.returncode == 137, killed.stderr
    assert "share 1/2 is done; " in killed.stdout
    assert not open_store(tmp_path / "s", allow_incomplete=True).is_complete
    done = subprocess.run(command, env={**env, "KILLED": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert result_files(tmp_path / "s") == whole


def test_an_append_is_shared_too(tmp_path, settings):
    store = extract(output=tmp_path / "s", **settings)
    lines = write_corpus(tmp_path / "more.jsonl", 90).read_text().splitlines(keepends=True)[60:]
    Path(tmp_path / "more.jsonl").write_text("".join(lines))
    for share in (1, 2):
        grown = append(tmp_path / "s", str(tmp_path / "more.jsonl"), shards=f"{share}/2")
        assert len(grown) == len(store) + (30 if share == 2 else 0)
    assert verify(tmp_path / "s").is_good


@pytest.mark.parametrize("shards", ["0/4", "5/4", "4", "a/b", "1/0", "", "-1/4"])
def test_what_is_no_share_is_refused(tmp_path, settings, shards):
    with pytest.raises(ConfigError, match=rf"`shards` '{shards}' must be I/N, share I of N, from 1/N to N/N"):
        extract(output=tmp_path / "s", **settings, shards=shards)
    assert not (tmp_path / "s").exists()


def test_what_does_not_go_with_shares(tmp_path, settings):
    command = ("extract", *flags(settings), "-o", str(tmp_path / "s"), "--shards", "1/2")
    for more, said in (("--overwrite", "--overwrite does not go with --shards"), ("--runner=ray", "drop one of them")):
        code, _, errors = run_cli(*command, more)
        assert (code, len(errors)) == (2, 1)
        assert said in errors[0]
