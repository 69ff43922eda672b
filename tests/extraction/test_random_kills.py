"""Random kills of workers and of their parent, also while a run resumes: `make test-long`."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from bertfeat.extraction.run import extract
from bertfeat.store.verification import verify
from tests.support.cli_runs import three_shards
from tests.support.drill import Zygote, orphans, result_files, run_pooled, write_corpus
from tests.support.runner_fakes import is_alive

pytestmark = pytest.mark.long

N_KILLS = int(os.environ.get("BERTFEAT_DRILL_KILLS", "200"))
SEED = 20


class Drill:
    """Completes one store after another despite kills, and counts errors."""

    def __init__(self, warm: Zygote, folder: Path, settings: dict, whole: dict[str, bytes], duration_s: float) -> None:
        self.warm, self.folder, self.settings, self.whole, self.duration_s = warm, folder, settings, whole, duration_s
        self.random = random.Random(SEED)
        self.counts: Counter[str] = Counter(
            dict.fromkeys(("points", "worker", "parent", "in a resumed run", "gave up", "stores"), 0)
            | dict.fromkeys(("torn parts", "differing bytes", "orphans", "problems"), 0)
        )

    def one_store(self) -> None:
        root = self.folder / f"s{self.counts['stores']}"
        code, n_runs = -1, 0
        while code != 0:
            code = self.one_run(root, resumed=n_runs > 0, kills=self.random.random() < 0.85 and n_runs < 12)
            n_runs += 1
            assert code in (0, 3, -signal.SIGKILL), code
            self.counts["gave up"] += code == 3
            seen = result_files(root)
            self.counts["torn parts"] += sum(self.whole.get(name) != data for name, data in seen.items())
        self.counts["differing bytes"] += seen != self.whole
        self.counts["orphans"] += len(orphans(root))
        self.counts["problems"] += len(verify(root).problems)
        self.counts["stores"] += 1

    def one_run(self, root: Path, *, resumed: bool, kills: bool) -> int:
        pids = self.folder / f"pids-{time.monotonic_ns()}"
        pids.mkdir()
        parent = self.warm.fork(run_pooled, self.warm.address, str(pids), str(root), self.settings)
        while kills and is_alive(parent) and self.counts["points"] < N_KILLS:
            time.sleep(self.random.uniform(0, self.duration_s / 2))
            workers = [int(file.name) for file in pids.iterdir() if is_alive(int(file.name))]
            kind = "worker" if workers and self.random.random() < 0.5 else "parent"
            target = self.random.choice(workers) if kind == "worker" else parent
            if not is_alive(target):
                break
            os.kill(target, signal.SIGKILL)
            self.counts.update(points=1, **{kind: 1, "in a resumed run": resumed})
        return self.warm.wait(parent)


def test_random_kills_of_worker_and_parent_lose_nothing(tmp_path, model, warm, capsys):
    changes = {"levels": ["token", "sentence"], "layers": "-1,-2", "shard_bytes": 40_000, "workers": 2}
    settings = three_shards(tmp_path, model) | changes
    write_corpus(tmp_path / "corpus.jsonl", 400)
    extract(output=tmp_path / "whole", **{**settings, "workers": 1})
    whole = result_files(tmp_path / "whole")
    (tmp_path / "pids").mkdir()
    start = time.monotonic()
    assert warm.run(run_pooled, warm.address, str(tmp_path / "pids"), str(tmp_path / "timed"), settings) == 0
    drill = Drill(warm, tmp_path, settings, whole, time.monotonic() - start)
    assert result_files(tmp_path / "timed") == whole
    while drill.counts["points"] < N_KILLS:
        drill.one_store()
    with capsys.disabled():
        shards = len(list((tmp_path / "whole/token").iterdir()))
        print(f"\nkill drill: {shards} shards, 2 workers, {drill.duration_s:.1f} s a run: {dict(drill.counts)}")
    assert drill.counts["points"] == N_KILLS
    assert drill.counts["in a resumed run"] > N_KILLS / 4
    assert min(drill.counts["worker"], drill.counts["parent"]) > N_KILLS / 5
    wrong = {name: drill.counts[name] for name in ("torn parts", "differing bytes", "orphans", "problems")}
    assert wrong == dict.fromkeys(wrong, 0)
