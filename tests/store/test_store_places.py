"""Stores that are copied while they are written, moved, or read-only, and locks with a reused process id."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from bertfeat.errors import StoreError
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify
from bertfeat.store.writer import open_for_writing
from tests.support.places import ROOT
from tests.support.store_fakes import contents, make_plan, make_result, write_store

PLAN = make_plan((3, 2, 4, 1, 5, 2))


def write_slowly(root: Path, rng: random.Random) -> None:
    with open_for_writing(root, PLAN) as writer:
        for shard in writer.pending():
            writer.commit(shard, make_result(PLAN, shard, n_bad=shard.index % 2))
            time.sleep(rng.random() * 0.004)
        writer.complete()


def copy_like_cp(source: Path, target: Path) -> None:
    """Copy file by file as `cp -r` does, without files that disappear during the copy."""
    target.mkdir()
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        try:
            if entry.is_dir():
                copy_like_cp(Path(entry.path), target / entry.name)
            else:
                shutil.copyfile(entry.path, target / entry.name)
        except FileNotFoundError:
            continue


def copies(tmp_path: Path, n_tries: int, seed: int) -> tuple[int, int]:
    """Return how many copies were of unfinished and of finished stores."""
    write_store(tmp_path / "reference", PLAN)
    rng = random.Random(seed)
    n_unfinished = 0
    for number in range(n_tries):
        root, copied = tmp_path / f"s{number}", tmp_path / f"c{number}"
        writer = threading.Thread(target=write_slowly, args=(root, rng))
        writer.start()
        while not root.exists():
            time.sleep(0.0005)
        time.sleep(rng.random() * 0.03)
        copy_like_cp(root, copied)
        writer.join()
        is_finished = (copied / "manifests/00000.json").exists()
        n_unfinished += not is_finished
        if is_finished:
            # The parts were copied before or after the manifest was written: verify notices missing ones.
            report = verify(copied)
            if report.is_good:
                assert open_store(copied).n_rows("token") == 17
        try:
            write_slowly(copied, rng)
        except StoreError:
            # The private folder was copied before the plan was written: nothing shows where the parts come from.
            assert not list(copied.glob("_bertfeat/work/*/plan.json"))
            continue
        assert contents(copied) == contents(root)
        assert verify(copied).is_good
    return n_unfinished, n_tries - n_unfinished


@pytest.mark.usefixtures("no_fsync")
def test_a_copy_made_while_the_store_is_written_is_finished_to_the_same_bytes(tmp_path):
    copies(tmp_path, 4, 1)


@pytest.mark.long
def test_100_copies_made_while_the_store_is_written(tmp_path):
    n_unfinished, n_finished = copies(tmp_path, 100, 2)
    print(n_unfinished, n_finished)
    assert n_unfinished > 20


def test_an_unfinished_store_resumes_after_a_move(tmp_path):
    write_store(tmp_path / "reference", PLAN)
    with open_for_writing(tmp_path / "a", PLAN) as writer:
        writer.commit(writer.pending()[0], make_result(PLAN, writer.pending()[0]))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").rename(tmp_path / "elsewhere/b")
    with open_for_writing(tmp_path / "elsewhere/b", PLAN) as writer:
        assert len(writer.pending()) == len(PLAN.shards) - 1
    write_store(tmp_path / "elsewhere/b", PLAN)
    assert contents(tmp_path / "elsewhere/b") == contents(tmp_path / "reference")
    (tmp_path / "elsewhere/b").rename(tmp_path / "c")
    assert verify(tmp_path / "c").is_good
    assert open_store(tmp_path / "c").numpy("token", "layer_04").shape == (17, 4)


@pytest.mark.parametrize("pid", [1, os.getpid(), "x"], ids=["init", "own", "text"])
def test_a_process_id_in_the_lock_file_is_no_lock(tmp_path, pid):
    """The kernel holds the lock, so a reused process id means nothing."""
    write_store(tmp_path / "s", PLAN)
    (tmp_path / "s/manifests/00000.json").unlink()
    (tmp_path / "s/_bertfeat/lock").write_text(json.dumps({"pid": pid, "host": "here"}))
    write_store(tmp_path / "s", PLAN)
    assert verify(tmp_path / "s").is_good


READ = """
import sys
from pathlib import Path
from tests.support.store_fakes import make_plan
from bertfeat.errors import BertfeatError
from bertfeat.store.reader import open_store
from bertfeat.store.verification import verify, mark_for_redoing
from bertfeat.store.writer import open_for_writing
root = Path(sys.argv[1])
plan = make_plan((3, 2, 4, 1, 5, 2))
try:
    (root / "x").write_text("")
except OSError:
    pass
else:
    sys.exit("this folder can be written")
store = open_store(root)
assert store.numpy("token", "layer_04").shape == (17, 4) and store.bad_rows() == () and len(store.receipts()) == 6
assert store.polars("token").height == 17 and verify(root).is_good
for plan in (plan, make_plan((1,))):
    try:
        with open_for_writing(root, plan, overwrite=len(plan.shards) == 1):
            pass
        print("opened")
    except BertfeatError as error:
        print(error)
"""


@pytest.mark.skipif(not shutil.which("setpriv") and os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store(tmp_path):
    root = tmp_path / "s"
    write_store(root, PLAN)
    want = contents(root)
    for folder, _, names in os.walk(root):
        for name in names:
            (Path(folder) / name).chmod(0o444)
        Path(folder).chmod(0o555)
    command = [sys.executable, "-c", READ, str(root)]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner", "--inh-caps=-all", *command]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    for folder, _, _ in os.walk(root):
        Path(folder).chmod(0o755)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("permission denied" in line for line in lines), lines
    assert contents(root) == want
    assert np.isfinite(open_store(root).numpy("token", "layer_04")).all()
