"""Kill drill on the real extraction: a process dies at every step of every shard, and the next run completes."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from drill import orphans, result_files, run_killed_at, write_corpus, zygote
from families import build_model

from bertfeat.extraction import extract
from bertfeat.store import steps, verify


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drill")
    return {
        "inputs": str(write_corpus(folder / "corpus.jsonl", 24, bad_every=7)),
        "model": str(build_model("bert", folder / "model", num_hidden_layers=2)),
        "id_column": "id",
        "bad_rows": "quarantine",
        "levels": ["word"],
        "layers": "-1",
        "shard_bytes": 25_000,
    }


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_kill_at_every_step_of_every_shard_and_then_a_run_gives_the_same_bytes(tmp_path, settings, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    passed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(steps, "hook", passed.append)
        store = extract(output=tmp_path / "whole", **settings)
    whole = result_files(tmp_path / "whole")
    assert len(store.plan.shards) == 3
    assert set(passed) == set(steps.STEPS)
    assert store.manifest["totals"]["n_bad_rows"] == 4
    with zygote(tmp_path, settings) as warm:
        for point in range(1, len(passed) + 1):
            root = tmp_path / f"killed-{point}"
            assert warm.run(run_killed_at, point, str(root), settings) == -signal.SIGKILL, passed[point - 1]
            # What has its final name is whole, whenever the kill came.
            assert result_files(root).items() <= whole.items(), passed[point - 1]
            extract(output=root, **settings)
            assert result_files(root) == whole, passed[point - 1]
            assert orphans(root) == [], passed[point - 1]
            assert verify(root).is_good
        assert warm.run(run_killed_at, len(passed) + 1, str(tmp_path / "untouched"), settings) == 0
    assert result_files(tmp_path / "untouched") == whole
