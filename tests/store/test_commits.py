"""Commits by several processes, and the shards that a later run does again."""

from __future__ import annotations

import subprocess
import sys

from bertfeat.config import Level
from bertfeat.store import open_for_writing
from tests.support.places import ROOT
from tests.support.store_fakes import contents, make_plan, make_result, write_store

PLAN = make_plan((3, 2, 2), levels=(Level.TOKEN, Level.SENTENCE), combine="none")
RESULT = {"n_bad": 1}


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
        "from tests.store.test_commits import PLAN, RESULT; from bertfeat.store import commit_shard\n"
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
