"""Kill drill against an object store: random SIGKILLs, of runs that resume as well, and always the same bytes."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from bertfeat.store.verification import verify
from tests.support.drill import ask, run_extract, run_pooled, write_corpus, zygote
from tests.support.families import build_model
from tests.support.object_stores import BUCKET, bucket, objects, result_objects
from tests.support.places import ROOT
from tests.support.runner_fakes import is_alive
from tests.support.store_fakes import make_plan, write_store

# Loaded before the fork, so that a child does not pay for them; none of them starts a thread by being imported.
MODULES = ["s3fs", "aiobotocore.session", "botocore.client", "fsspec.asyn", "bertfeat.store.folder"]
SEED = 9


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drill")
    return {
        "inputs": str(write_corpus(folder / "corpus.jsonl", 60, bad_every=7)),
        "model": str(build_model("bert", folder / "model", num_hidden_layers=2)),
        "id_column": "id",
        "bad_rows": "quarantine",
        "levels": ["token", "sentence"],
        "layers": "-1",
        "shard_bytes": 8_000,
    }


@pytest.fixture(scope="module")
def warm(tmp_path_factory, settings, s3):
    folder = tmp_path_factory.mktemp("zygote")
    with zygote(folder, settings) as made:
        (folder / "more").write_text(json.dumps(MODULES))
        assert made.wait(ask(made.address, None, (str(folder / "more"),))) == 0
        yield made


class Drill:
    """Runs one store after another to its end, through kills, and checks it."""

    def __init__(self, warm, folder, settings):
        self.warm, self.folder, self.settings = warm, folder, settings
        self.random = random.Random(SEED)
        self.n_kills = self.n_resumed = self.n_workers_killed = 0
        start = time.monotonic()
        assert self.warm.run(run_extract, f"s3://{BUCKET}/whole", settings) == 0
        self.duration_s = time.monotonic() - start
        self.whole = result_objects(f"s3://{BUCKET}/whole")

    def one_store(self, root, n_wanted, *, n_workers=1):
        code, n_runs = -1, 0
        while code != 0:
            code = self.one_run(root, n_workers, resumed=n_runs > 0, kills=self.n_kills < n_wanted and n_runs < 8)
            assert code in (0, 3, -signal.SIGKILL), code
            n_runs += 1
            # Each file is whole, whenever the kill came.
            assert result_objects(root).items() <= self.whole.items()
        assert result_objects(root) == self.whole
        strays = objects(root).keys() - self.whole.keys()
        assert {name for name in strays if not re.search(r"/\d+\.json$|/lock$", name)} == set()
        assert verify(root).is_good

    def one_run(self, root, n_workers, *, resumed, kills):
        pids = self.folder / f"pids-{time.monotonic_ns()}"
        pids.mkdir()
        if n_workers == 1:
            parent = self.warm.fork(run_extract, root, self.settings)
        else:
            given = self.settings | {"workers": n_workers}
            parent = self.warm.fork(run_pooled, self.warm.address, str(pids), root, given)
        if kills:
            time.sleep(self.random.uniform(0, self.duration_s))
            workers = [int(file.name) for file in pids.iterdir() if is_alive(int(file.name))]
            target = self.random.choice([parent, parent, *workers])
            if is_alive(target):
                os.kill(target, signal.SIGKILL)
                self.n_kills += 1
                self.n_resumed += resumed
                self.n_workers_killed += target != parent
        return self.warm.wait(parent)


CHILD = """
import sys
sys.path[:0] = sys.argv[2:]
from tests.support.store_fakes import make_plan, write_store
import bertfeat.store, pandas, s3fs
print("ready", flush=True)
write_store(sys.argv[1], make_plan((3, 2, 2, 3), combine="none"), n_bad=1)
"""
PLAN = make_plan((3, 2, 2, 3), combine="none")


def test_three_random_kills_of_a_writer_lose_nothing(s3):
    start = time.monotonic()
    write_store(f"s3://{BUCKET}/whole-writer", PLAN, n_bad=1)
    duration_s = time.monotonic() - start
    whole = result_objects(f"s3://{BUCKET}/whole-writer")
    root, chance, n_kills = f"s3://{BUCKET}/killed-writer", random.Random(SEED), 0
    here = [str(ROOT)]
    while n_kills < 3:
        command = [sys.executable, "-c", CHILD, root, *here]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0.2, 0.8) * duration_s)
            child.kill()
        n_kills += child.returncode == -signal.SIGKILL
        assert result_objects(root).items() <= whole.items()
        if child.returncode == 0:
            bucket().rm(root, recursive=True)
    write_store(root, PLAN, n_bad=1)
    assert result_objects(root) == whole
    assert verify(root).is_good


@pytest.mark.long
def test_twenty_random_kills_of_runs_and_workers_lose_nothing(tmp_path, settings, warm, capsys):
    drill = Drill(warm, tmp_path, settings)
    number = 0
    while drill.n_kills < 20:
        drill.one_store(f"s3://{BUCKET}/long-{number}", 20, n_workers=1 + number % 2)
        number += 1
    with capsys.disabled():
        print(
            f"\nkill drill on an object store: {drill.n_kills} kills, {drill.n_resumed} of them in a resumed run, "
            f"{drill.n_workers_killed} of workers, {number} stores of {len(drill.whole)} files"
        )
    assert drill.n_resumed > 3
