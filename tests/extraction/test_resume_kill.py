"""Kill drill on the real extraction: a process dies at every step of every shard, and the next run completes."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from bertfeat.durable import steps
from bertfeat.extraction.run import extract
from bertfeat.progress import Progress
from bertfeat.store.verification import verify
from tests.support.cli_runs import three_shards
from tests.support.drill import STEPS, orphans, result_files, run_killed_at, run_pooled, write_corpus
from tests.support.families import SENTENCES
from tests.support.static_files import write_vectors

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def settings(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("drill")
    corpus = write_corpus(folder / "bad.jsonl", 24, bad_every=7)
    return three_shards(folder, model) | {"inputs": str(corpus), "bad_rows": "quarantine", "levels": ["word"]}


def test_a_kill_at_every_step_of_every_shard_and_then_a_run_gives_the_same_bytes(tmp_path, settings, warm, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    passed: list[str] = []
    with monkeypatch.context() as patch:
        # What is kept of the model in the user's cache is not of the store.
        patch.setattr(steps, "hook", lambda name: None if name.startswith("cache") else passed.append(name))
        store = extract(output=tmp_path / "whole", **settings)
    whole = result_files(tmp_path / "whole")
    assert len(store.plan.shards) == 3
    assert set(passed) == STEPS
    assert store.manifest.totals.n_bad_rows == 4
    for point in range(1, len(passed) + 1):
        root = tmp_path / f"killed-{point}"
        assert warm.run(run_killed_at, point, str(root), settings) == -signal.SIGKILL, passed[point - 1]
        # A file with its final name is complete, at every kill.
        assert result_files(root).items() <= whole.items(), passed[point - 1]
        extract(output=root, **settings)
        assert result_files(root) == whole, passed[point - 1]
        assert orphans(root) == [], passed[point - 1]
        assert verify(root).is_good
    assert warm.run(run_killed_at, len(passed) + 1, str(tmp_path / "untouched"), settings) == 0
    assert result_files(tmp_path / "untouched") == whole


@pytest.mark.numeric
@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_the_number_of_workers_does_not_change_a_byte(tmp_path, settings, warm, n_workers):
    many = settings | {"shard_bytes": 8_000, "levels": ["token", "word", "sentence"]}
    whole = extract(output=tmp_path / "whole", **many)
    assert len(whole.plan.shards) > 8
    (tmp_path / "pids").mkdir()
    pooled = many | {"workers": n_workers}
    assert warm.run(run_pooled, warm.address, str(tmp_path / "pids"), str(tmp_path / "s"), pooled) == 0
    assert len(list((tmp_path / "pids").iterdir())) == (n_workers if n_workers > 1 else 0)
    assert result_files(tmp_path / "s") == result_files(tmp_path / "whole")
    assert orphans(tmp_path / "s") == []


class KillsFirstWorker(Progress):
    """Kills one worker when the first shard is done."""

    def __init__(self) -> None:
        self.killed: int | None = None

    def committed(self, receipt):
        if self.killed is None:
            children = psutil.Process().children()
            workers = [child.pid for child in children if any("runners.processes" in word for word in child.cmdline())]
            self.killed = workers[0]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["static", pytest.param("bert", marks=pytest.mark.long)])
def test_a_worker_of_a_real_run_that_is_killed_is_replaced(tmp_path, settings, kind):
    """Three real processes; with static vectors, none of them takes seconds to import transformers."""
    many = settings | {"shard_bytes": 4_000}
    if kind == "static":
        words = sorted({word for sentence in SENTENCES for word in sentence.split()})
        glove = write_vectors(
            tmp_path / "glove.txt", {word: [n + k / 8 for k in range(32)] for n, word in enumerate(words)}
        )
        many |= {"model": str(glove), "shard_bytes": 4_000}
    kills = KillsFirstWorker()
    store = extract(output=tmp_path / "s", progress=kills, **many, workers=2)
    assert kills.killed is not None
    extract(output=tmp_path / "whole", **many)
    assert len(store.plan.shards) > 12
    assert result_files(store.path) == result_files(tmp_path / "whole")
    assert orphans(store.path) == []
