"""Kill drills on real extractions and appends, at every step and at random (`make test-long`), and runs by workers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bertfeat.durable import steps
from bertfeat.extraction.run import append, extract
from bertfeat.store.compaction import compact
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from tests.support.drill import (
    STEPS,
    Zygote,
    orphans,
    result_files,
    run_extract,
    run_killed_at,
    run_pooled,
    three_shards,
    write_corpus,
)
from tests.support.runner_fakes import die_at, is_alive

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

N_KILLS = int(os.environ.get("BERTFEAT_DRILL_KILLS", "200"))
N_APPENDS = int(os.environ.get("BERTFEAT_DRILL_APPENDS", "1000"))
SEED = 20


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> list[str]:
    """A corpus of three shards, and two more inputs, of two shards and of one; all have bad rows."""
    folder = tmp_path_factory.mktemp("inputs")
    lines = write_corpus(folder / "all.jsonl", 44, bad_every=6).read_text().splitlines(keepends=True)
    paths = []
    for name, start, end in (("a", 0, 24), ("b", 24, 40), ("c", 40, 44)):
        paths.append(str(folder / f"{name}.jsonl"))
        Path(paths[-1]).write_text("".join(lines[start:end]))
    return paths


@pytest.fixture(scope="module")
def settings(tmp_path_factory, model, inputs) -> dict[str, Any]:
    changes = {"inputs": inputs[0], "bad_rows": "quarantine", "levels": ["word", "span"]}
    return three_shards(tmp_path_factory.mktemp("settings"), model) | changes


@pytest.fixture(scope="module")
def quick(tmp_path_factory, settings, glove) -> dict[str, Any]:
    """The same with static vectors: as many steps, and no model to load."""
    quick = settings | {"model": str(glove), "shard_bytes": 20_000}
    # The first run copies the vectors into the user's cache.
    extract(output=tmp_path_factory.mktemp("first") / "s", **quick)
    return quick


def passed_steps(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[str]:
    """Return the steps of a call, but for those of the user's cache, which is not of the store."""
    passed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(steps, "hook", lambda name: None if name.startswith("cache") else passed.append(name))
        call()
    assert {*passed} == STEPS
    return passed


@pytest.mark.promise("kill")
def test_a_kill_at_every_step_of_every_shard_and_then_a_run_gives_the_same_bytes(tmp_path, quick, warm, monkeypatch):
    # Of the spans, the file's bytes are in the plan, and its rows are looked up again for each shard.
    spans = pl.DataFrame({"doc_id": [f"d{n}" for n in range(24) if n % 6 != 1]}).with_columns(char_start=0, char_end=3)
    spans.write_csv(tmp_path / "spans.csv")
    quick = quick | {"chunk": None, "spans": str(tmp_path / "spans.csv"), "shard_bytes": 28_000}
    passed = passed_steps(monkeypatch, lambda: extract(output=tmp_path / "whole", **quick))
    whole = result_files(tmp_path / "whole")
    manifest = open_store(tmp_path / "whole").manifest
    assert len(manifest.shards) > 2
    assert manifest.totals.n_bad_rows == 4
    for point, step in enumerate(passed, start=1):
        root = tmp_path / f"killed-{point}"
        assert warm.run(run_killed_at, point, str(root), quick) == -signal.SIGKILL, step
        # A file with its final name is complete, at every kill.
        assert result_files(root).items() <= whole.items(), step
        extract(output=root, **quick)
        assert result_files(root) == whole, step
        assert orphans(root) == [], step
    assert verify(root).is_good


def run_append_killed_at(point: int, root: str, inputs: str) -> None:
    die_at(point)
    append(root, inputs)


@pytest.mark.promise("kill-append")
def test_a_kill_at_every_step_leaves_the_old_store_or_the_new_one(tmp_path, quick, inputs, warm, monkeypatch):
    # Chunks that are encoded alone are documents of their own in the same shard.
    base = extract(output=tmp_path / "base", **quick | {"chunk_context": "alone"}).path
    old = open_store(base).manifest
    shutil.copytree(base, tmp_path / "whole")
    passed = passed_steps(monkeypatch, lambda: append(tmp_path / "whole", inputs[2]))
    new, whole = open_store(tmp_path / "whole").manifest, result_files(tmp_path / "whole")
    for point, step in enumerate(passed, start=1):
        root = tmp_path / f"killed-{point}"
        shutil.copytree(base, root)
        assert warm.run(run_append_killed_at, point, str(root), inputs[2]) == -signal.SIGKILL, step
        # A version appears in one step: a reader always sees a whole store.
        assert open_store(root).manifest == (new if "manifest.renamed" in passed[:point] else old), step
        assert verify(root).is_good, step
        append(root, inputs[2])
        assert result_files(root) == whole, step
        assert orphans(root) == [], step


@pytest.mark.promise("workers")
@pytest.mark.numeric
def test_the_number_of_workers_does_not_change_a_byte(tmp_path, settings, warm):
    many = settings | {"shard_bytes": 8_000, "levels": ["token", "word", "span", "sentence"], "chunk_context": "alone"}
    whole = extract(output=tmp_path / "whole", **many)
    assert len(whole.plan.shards) > 8
    for n_workers in (1, 2, 4):
        pids, root = tmp_path / f"pids-{n_workers}", tmp_path / f"s{n_workers}"
        pids.mkdir()
        assert warm.run(run_pooled, warm.address, str(pids), str(root), many | {"workers": n_workers}) == 0
        assert len(list(pids.iterdir())) == (n_workers if n_workers > 1 else 0)
        assert result_files(root) == result_files(whole.path)
        assert orphans(root) == []


def append_in_two(root: str, inputs: str) -> None:
    append(root, inputs, workers=2)


@pytest.mark.promise("workers")
@pytest.mark.numeric
def test_appends_by_several_workers_give_the_bytes_of_one(tmp_path, settings, inputs, warm):
    root, pids = extract(output=tmp_path / "s", **settings).path, tmp_path / "pids"
    shutil.copytree(root, tmp_path / "whole")
    append(tmp_path / "whole", inputs[1])
    pids.mkdir()
    assert warm.run(run_pooled, warm.address, str(pids), str(root), inputs[1], append_in_two) == 0
    assert len(list(pids.iterdir())) == 2
    assert result_files(root) == result_files(tmp_path / "whole")


class Drill:
    """Takes one store after another through a run and appends, despite kills of workers and parents; counts errors."""

    def __init__(self, warm: Zygote, folder: Path, stages: list[tuple[Callable[..., None], Any]]) -> None:
        self.warm, self.folder, self.stages = warm, folder, stages
        self.random, self.counts, self.wholes = random.Random(SEED), Counter(), []
        start = time.monotonic()
        for stage in stages:
            assert self.one_run(folder / "whole", stage, resumed=False, kills=False) == 0
            self.wholes.append(result_files(folder / "whole"))
        self.duration_s = (time.monotonic() - start) / len(stages)

    def one_store(self) -> None:
        root = self.folder / f"s{self.counts['stores']}"
        for number, stage in enumerate(self.stages):
            code, n_runs = -1, 0
            while code != 0:
                kills = self.random.random() < 0.85 and n_runs < 12
                code = self.one_run(root, stage, resumed=n_runs > 0, kills=kills)
                assert code in (0, 3, -signal.SIGKILL), code
                n_runs += 1
                self.look(root, number)
            self.counts["differing"] += result_files(root) != self.wholes[number] or not verify(root).is_good
        self.counts["orphans"] += len(orphans(root))
        self.counts["stores"] += 1

    def one_run(self, root: Path, stage: tuple[Callable[..., None], Any], *, resumed: bool, kills: bool) -> int:
        pids = self.folder / f"pids-{time.monotonic_ns()}"
        pids.mkdir()
        run, argument = stage
        parent = self.warm.fork(run_pooled, self.warm.address, str(pids), str(root), argument, run)
        while kills and is_alive(parent) and self.counts["kills"] < N_KILLS:
            time.sleep(self.random.uniform(0, self.duration_s / 2))
            workers = [int(file.name) for file in pids.iterdir() if is_alive(int(file.name))]
            kind = "worker" if workers and self.random.random() < 0.5 else "parent"
            target = self.random.choice(workers) if kind == "worker" else parent
            if not is_alive(target):
                break
            os.kill(target, signal.SIGKILL)
            self.counts.update(kills=1, **{kind: 1, "in a rerun": resumed})
        return self.warm.wait(parent)

    def look(self, root: Path, number: int) -> None:
        """Check after each run that files are whole, and that a reader sees the store before an append or after it."""
        wholes = self.wholes[max(number - 1, 0) : number + 1]
        seen = result_files(root)
        self.counts["torn"] += sum(data not in [whole.get(name) for whole in wholes] for name, data in seen.items())
        if number:
            self.counts["unreadable"] += not verify(root).is_good


@pytest.mark.promise("kill", "kill-append")
@pytest.mark.long
@pytest.mark.parametrize("kind", ["runs", "appends"])
def test_random_kills_of_worker_and_parent_lose_nothing(tmp_path, settings, inputs, warm, capsys, kind):
    many = settings | {"workers": 2}
    if kind == "runs":
        many |= {"inputs": str(write_corpus(tmp_path / "corpus.jsonl", 400)), "levels": ["token", "span", "sentence"]}
        # Both workers map one sorted copy of the table.
        spans = pl.DataFrame({"doc_id": [f"d{n}" for n in range(400)]}).with_columns(char_start=0, char_end=3)
        spans.write_csv(tmp_path / "spans.csv")
        many |= {"chunk": None, "spans": str(tmp_path / "spans.csv")}
    appends = [(append_in_two, path) for path in inputs[1:]] if kind == "appends" else []
    stages = [(run_extract, many), *appends]
    drill = Drill(warm, tmp_path, stages)
    alone = extract(output=tmp_path / "alone", **many | {"workers": 1})
    assert result_files(alone.path) == drill.wholes[0]
    while drill.counts["kills"] < N_KILLS:
        drill.one_store()
    with capsys.disabled():
        print(f"\nkill drill of {kind}: 2 workers, {drill.duration_s:.1f} s a run: {dict(drill.counts)}")
    assert drill.counts["in a rerun"] > N_KILLS / 4
    # An append is short: most kills come before its workers have started.
    assert min(drill.counts["worker"], drill.counts["parent"]) > (N_KILLS / 5 if kind == "runs" else 0)
    wrong = {name: drill.counts[name] for name in ("torn", "differing", "orphans", "unreadable")}
    assert wrong == dict.fromkeys(wrong, 0)


@pytest.mark.promise("kill-append")
@pytest.mark.long
def test_a_thousand_appends_lose_nothing_and_compact_into_one_part(tmp_path, settings, capsys):
    frame = pl.DataFrame({"id": [f"d{n}" for n in range(N_APPENDS + 2)]}).with_columns(text="Text " + pl.col("id"))
    frame.head(2).write_ndjson(tmp_path / "two.jsonl")
    changes = {"inputs": str(tmp_path / "two.jsonl"), "levels": ["sentence"], "chunk": None}
    root = extract(output=tmp_path / "s", **settings | changes).path
    seconds = []
    for number in range(2, N_APPENDS + 2):
        start = time.process_time()
        append(root, frame[number])
        seconds.append(time.process_time() - start)
    fifth = len(seconds) // 5
    first, last = statistics.median(seconds[:fifth]), statistics.median(seconds[-fifth:])
    with capsys.disabled():
        print(f"\n{N_APPENDS} appends: {first:.3f} CPU seconds each at first, {last:.3f} at last ({last / first:.2f})")
    grown = open_store(root)
    assert grown.polars("sentence", ["doc_id"])["doc_id"].to_list() == frame["id"].to_list()
    assert verify(root).is_good
    rows = grown.polars("sentence")
    small = compact(grown, shard_bytes="64MB")
    assert len(small.parts("sentence")) == 1
    assert small.polars("sentence").equals(rows)
