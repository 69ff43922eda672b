"""Kill drills on appends: at every step, and 200 at random (`make test-long`); and a thousand appends in a row."""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bertfeat.durable import steps
from bertfeat.extraction.run import append, extract
from bertfeat.store.compaction import compact
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from tests.support.cli_runs import three_shards
from tests.support.drill import STEPS, Zygote, orphans, result_files, run_extract, write_corpus
from tests.support.runner_fakes import is_alive

pytestmark = pytest.mark.usefixtures("one_thread")

N_KILLS = int(os.environ.get("BERTFEAT_DRILL_KILLS", "200"))
N_APPENDS = int(os.environ.get("BERTFEAT_DRILL_APPENDS", "1000"))
SEED = 21


@pytest.fixture(scope="module")
def settings(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("drill")
    return three_shards(folder, model) | {"bad_rows": "quarantine", "levels": ["word"]}


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """Two more inputs: of two shards, with bad rows, and of one."""
    folder = tmp_path_factory.mktemp("later")
    lines = write_corpus(folder / "all.jsonl", 44, bad_every=6).read_text().splitlines(keepends=True)
    (folder / "b.jsonl").write_text("".join(lines[24:40]))
    (folder / "c.jsonl").write_text("".join(lines[40:]))
    return [str(folder / "b.jsonl"), str(folder / "c.jsonl")]


def run_append(root: str, inputs: str) -> None:
    import torch

    torch.set_num_threads(1)
    append(root, inputs)


def run_append_killed_at(point: int, root: str, inputs: str) -> None:
    from tests.support.kills import die_at

    die_at(point)
    run_append(root, inputs)


def test_a_kill_at_every_step_leaves_the_old_store_or_the_new_one(tmp_path, settings, later, warm, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    base = extract(output=tmp_path / "base", **settings).path
    old = open_store(base).manifest
    shutil.copytree(base, tmp_path / "whole")
    passed: list[str] = []
    with monkeypatch.context() as patch:
        # What is kept of the model in the user's cache is not of the store.
        patch.setattr(steps, "hook", lambda name: None if name.startswith("cache") else passed.append(name))
        new = append(tmp_path / "whole", later[1]).manifest
    whole = result_files(tmp_path / "whole")
    assert {*passed} == STEPS
    for point, step in enumerate(passed, start=1):
        root = tmp_path / f"killed-{point}"
        shutil.copytree(base, root)
        assert warm.run(run_append_killed_at, point, str(root), later[1]) == -signal.SIGKILL, step
        # A version appears in one step: a reader always sees a whole store.
        manifest = open_store(root).manifest
        assert manifest == (new if "manifest.renamed" in passed[:point] else old), step
        assert verify(root).is_good, step
        append(root, later[1])
        assert result_files(root) == whole, step
        assert orphans(root) == [], step


class Drill:
    """Takes one store after another through an extraction and two appends despite kills, and counts errors."""

    def __init__(self, folder: Path, settings: dict[str, Any], later: list[str]) -> None:
        self.folder = folder
        self.stages: list[tuple[Any, ...]] = [(run_extract, settings), *((run_append, path) for path in later)]
        self.wholes: list[dict[str, bytes]] = []
        self.random = random.Random(SEED)
        self.counts: Counter[str] = Counter(dict.fromkeys(("kills", "in a rerun", "stores", "wrong", "unreadable"), 0))

    def one_store(self, warm: Zygote, duration_s: float) -> None:
        root = self.folder / f"s{self.counts['stores']}"
        for stage, (function, argument) in enumerate(self.stages):
            code, n_runs = -1, 0
            while code != 0:
                pid = warm.fork(function, str(root), argument)
                if self.random.random() < 0.8 and n_runs < 8:
                    time.sleep(self.random.uniform(0, duration_s))
                    if is_alive(pid):
                        os.kill(pid, signal.SIGKILL)
                code = warm.wait(pid)
                assert code in (0, -signal.SIGKILL), code
                self.counts.update({"kills": code != 0, "in a rerun": code != 0 and n_runs > 0})
                n_runs += 1
                self.look(root, stage)
            self.counts["wrong"] += result_files(root) != self.wholes[stage] or not verify(root).is_good
        self.counts["wrong"] += orphans(root) != []
        self.counts["stores"] += 1

    def look(self, root: Path, stage: int) -> None:
        """Check after each run that a reader sees the store before the append or after it."""
        if stage > 0:
            newest = max(root.glob("manifests/*.json"))
            name = f"manifests/{newest.name}"
            whole = [self.wholes[number].get(name) for number in (stage - 1, stage)]
            self.counts["unreadable"] += newest.read_bytes() not in whole or not verify(root).is_good


@pytest.mark.long
def test_random_kills_of_appends_and_reruns_give_the_bytes_of_one_sequence(tmp_path, settings, later, warm, capsys):
    drill = Drill(tmp_path, settings, later)
    root = tmp_path / "whole"
    start = time.monotonic()
    for function, argument in drill.stages:
        assert warm.run(function, str(root), argument) == 0
        drill.wholes.append(result_files(root))
    duration_s = (time.monotonic() - start) / len(drill.stages)
    while drill.counts["kills"] < N_KILLS:
        drill.one_store(warm, duration_s)
    with capsys.disabled():
        print(f"\nappend drill: {duration_s:.1f} s a run: {dict(drill.counts)}")
    assert drill.counts["in a rerun"] > N_KILLS / 4
    assert (drill.counts["wrong"], drill.counts["unreadable"]) == (0, 0)


@pytest.mark.long
def test_a_thousand_appends_lose_nothing_and_compact_into_one_part(tmp_path, settings, capsys):
    frame = pl.DataFrame({"id": [f"d{n}" for n in range(N_APPENDS + 2)]}).with_columns(text="Text " + pl.col("id"))
    path = tmp_path / "two.jsonl"
    frame.head(2).write_ndjson(path)
    store = extract(output=tmp_path / "s", **settings | {"inputs": str(path), "levels": ["sentence"]})
    seconds = []
    for number in range(2, N_APPENDS + 2):
        start = time.process_time()
        append(store.path, frame[number])
        seconds.append(time.process_time() - start)
    fifth = len(seconds) // 5
    first, last = statistics.median(seconds[:fifth]), statistics.median(seconds[-fifth:])
    with capsys.disabled():
        print(f"\n{N_APPENDS} appends: {first:.3f} CPU seconds each at first, {last:.3f} at last ({last / first:.2f})")
    grown = open_store(store.path)
    assert grown.polars("sentence", ["doc_id"])["doc_id"].to_list() == frame["id"].to_list()
    assert verify(store.path).is_good
    rows = grown.polars("sentence")
    small = compact(grown, shard_bytes="64MB")
    assert len(small.parts("sentence")) == 1
    assert small.polars("sentence").equals(rows)
