"""Kill drill: a real child process dies at every step of every shard; the next run ends with the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertfeat.config import Level
from bertfeat.store import open_for_writing, steps, verify
from tests.support.places import ROOT
from tests.support.store_fakes import contents, make_plan, make_result, write_store

PLAN = make_plan((3, 2, 2), levels=(Level.TOKEN, Level.SENTENCE), combine="none")
RESULT = {"n_bad": 1}

# One interpreter that has everything loaded forks a child for each point: a child is a real process that is really
# killed, and the drill does not pay for imports a hundred times (pyarrow loads pandas on first use, where it is
# installed). Nothing is computed before the fork, so that no thread of polars or Arrow is lost in it; a child that
# hangs all the same is ended by its alarm and fails the drill.
DRILL = """
import os, signal, sys
import pandas, pyarrow.compute
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from tests.support.store_fakes import write_store
from tests.store.test_store_kill import PLAN, RESULT
from bertfeat.store import steps

def run(root, point):
    signal.alarm(60)
    seen = 0
    def hook(name):
        nonlocal seen
        seen += 1
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)
    steps.hook = hook
    # A kill loses nothing of the page cache, so there is no need to wait for the disk.
    os.fsync = lambda fd: None
    write_store(root, PLAN, **RESULT)
    os._exit(0)

point = 0
status = 1
while status != 0:
    point += 1
    child = os.fork()
    if child == 0:
        run(Path(sys.argv[1]) / f"{point:03d}", point)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
"""


def steps_of_a_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    passed: list[str] = []
    monkeypatch.setattr(steps, "hook", passed.append)
    write_store(root, PLAN, **RESULT)
    monkeypatch.undo()
    return passed


def test_a_kill_at_every_step_leaves_a_store_that_the_next_run_finishes(tmp_path, monkeypatch):
    passed = steps_of_a_run(tmp_path / "whole", monkeypatch)
    assert set(passed) == set(steps.STEPS)
    whole = contents(tmp_path / "whole")
    roots = tmp_path / "killed"
    roots.mkdir()
    here = [str(ROOT)]
    subprocess.run([sys.executable, "-c", DRILL, str(roots), *here], check=True, timeout=300)
    killed = sorted(roots.iterdir())
    assert len(killed) == len(passed) + 1
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    for root in killed[:-1]:
        # What can be seen under a final name is whole.
        visible = {name: data for name, data in contents(root).items() if "/tmp/" not in name}
        assert visible.items() <= whole.items(), root
        with open_for_writing(root, PLAN) as writer:
            for shard in writer.pending():
                writer.commit(shard, make_result(PLAN, shard, **RESULT))
            writer.complete()
        assert contents(root) == whole, root
        assert verify(root).is_good
    assert contents(killed[-1]) == whole


def test_shards_are_only_done_again_when_their_receipt_is_not_there(tmp_path):
    with open_for_writing(tmp_path / "s", PLAN) as writer:
        for shard in PLAN.shards[:2]:
            writer.commit(shard, make_result(PLAN, shard, **RESULT))
    (tmp_path / "s/_bertfeat/receipts/00001.json").unlink()
    with open_for_writing(tmp_path / "s", PLAN) as writer:
        assert [shard.index for shard in writer.pending()] == [1, 2]


def test_worker_processes_commit_beside_each_other(tmp_path):
    write_store(tmp_path / "whole", PLAN, **RESULT)
    script = (
        "import sys; sys.path[:0] = sys.argv[3:]\n"
        "from pathlib import Path; from tests.support.store_fakes import make_result\n"
        "from tests.store.test_store_kill import PLAN, RESULT; from bertfeat.store import commit_shard\n"
        "shard = PLAN.shards[int(sys.argv[2])]\n"
        "commit_shard(Path(sys.argv[1]), PLAN, shard, make_result(PLAN, shard, **RESULT))\n"
    )
    here = [str(ROOT)]
    with open_for_writing(tmp_path / "s", PLAN) as writer:
        # Two of them do the same shard, as after a worker that was given up too early.
        children = [
            subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "s"), str(n), *here]) for n in (0, 1, 2, 2)
        ]
        assert [child.wait() for child in children] == [0, 0, 0, 0]
        assert writer.pending() == ()
        writer.complete()
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")
