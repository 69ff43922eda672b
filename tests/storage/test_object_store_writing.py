"""Writing, repair and locks in an object store: kills, damage, second writers and servers that misbehave."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys

import pytest

from bertfeat import open_store, verify
from bertfeat.choices import Level
from bertfeat.durable import files, steps
from bertfeat.errors import RunError, StorageError, StoreError, UserError
from bertfeat.store import mark_for_redoing, objectlock, open_for_writing
from tests.support import drill
from tests.support.command_line import bertfeat
from tests.support.object_stores import (
    bucket,
    objects,
    point_at,
    proxy,
    result_objects,
    without_conditions,
    without_ranges,
)
from tests.support.places import ROOT
from tests.support.store_fakes import make_plan, make_result, write_store

pytestmark = pytest.mark.usefixtures("s3")

PLAN = make_plan(levels=(Level.TOKEN, Level.SENTENCE))


def rerun(url, plan=PLAN, **opening):
    """Run the same extraction again; return the shards that it did."""
    with open_for_writing(url, plan, **opening) as writer:
        todo = writer.pending()
        for shard in todo:
            writer.commit(shard, make_result(plan, shard, n_bad=1))
        writer.complete()
    return [shard.index for shard in todo]


class TestResuming:
    def test_a_run_interrupted_at_any_step_is_finished_by_the_next(self, root, monkeypatch):
        passed: list[str] = []
        plan = make_plan((3, 2), combine="none")
        with monkeypatch.context() as patch:
            patch.setattr(steps, "hook", passed.append)
            rerun(f"{root}/whole", plan)
        made = result_objects(f"{root}/whole")
        assert {"plan.written", "part.durable", "receipt.written", "manifest.durable"} <= set(passed) <= drill.STEPS

        def stop_at(point):
            left = [point]

            def hook(name):
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt

            return hook

        for point in range(1, len(passed) + 1, 2):
            url = f"{root}/{point}"
            with monkeypatch.context() as patch:
                patch.setattr(steps, "hook", stop_at(point))
                with pytest.raises(KeyboardInterrupt):
                    rerun(url, plan)
            assert result_objects(url).items() <= made.items()
            rerun(url, plan)
            assert result_objects(url) == made, passed[point - 1]
            assert verify(url).is_good

    def test_damage_is_reported_and_only_its_shard_done_again(self, root):
        write_store(root, PLAN, n_bad=1)
        made = result_objects(root)
        rng = random.Random(3)
        for name in ("token/part-00001.parquet", "_bertfeat/quarantine/00000.jsonl"):
            shard = int(name.rpartition(".")[0][-5:])
            damaged = bytearray(made[name])
            damaged[rng.randrange(len(damaged))] ^= 1
            bucket().pipe_file(f"{root}/{name}", bytes(damaged))
            assert [(p.shard, p.part) for p in verify(root).problems] == [(shard, name)]
            result = bertfeat("verify", root)
            assert (result.code, result.out.startswith(name)) == (1, True)
            assert rerun(root) == [shard]
            assert result_objects(root) == made
        bucket().rm_file(f"{root}/token/part-00000.parquet")
        bucket().pipe_file(f"{root}/token/part-00009.parquet", b"stray")
        assert [str(p) for p in verify(root).problems] == [
            "token/part-00000.parquet: missing",
            "token/part-00009.parquet: belongs to no shard of the plan",
        ]
        assert mark_for_redoing(root, verify(root)) == (0,)
        assert rerun(root) == [0]
        assert result_objects(root) == made
        assert verify(root).is_good

    def test_a_lost_receipt_is_made_again_from_the_manifest(self, root):
        write_store(root, PLAN, n_bad=1)
        made = result_objects(root)
        bucket().rm_file(f"{root}/_bertfeat/receipts/00001.json")
        bucket().pipe_file(f"{root}/_bertfeat/receipts/00002.json", b"{}")
        assert rerun(root) == []
        assert result_objects(root) == made
        assert verify(root).is_good

    def test_overwrite_replaces_a_store_and_nothing_else(self, root):
        write_store(root, make_plan(levels=(Level.WORD,), layers="all"))
        bucket().pipe_file(f"{root}/word/notes.txt", b"mine")
        with pytest.raises(StoreError, match=r"holds files that are not part of a store \(word/notes.txt\)"):
            rerun(root, overwrite=True)
        bucket().rm_file(f"{root}/word/notes.txt")
        assert rerun(root, overwrite=True) == [0, 1, 2]
        write_store(f"{root}-fresh", PLAN, n_bad=1)
        assert result_objects(root) == result_objects(f"{root}-fresh")

    def test_other_objects_are_not_changed(self, root):
        bucket().pipe_file(f"{root}/notes.txt", b"mine")
        for overwrite in (False, True):
            with pytest.raises(StoreError, match=r"not part of a store \(notes.txt\); choose another `output`"):
                open_for_writing(root, PLAN, overwrite=overwrite)
        with pytest.raises(StoreError, match=r"not a folder \(an object\)"):
            open_for_writing(f"{root}/notes.txt", PLAN)
        assert objects(root) == {"notes.txt": b"mine"}

    def test_a_user_error_before_the_first_commit_leaves_nothing_behind(self, root):
        with pytest.raises(UserError), open_for_writing(root, PLAN):
            raise UserError("no such model")
        assert objects(root) == {}

    def test_a_shard_committed_twice_is_there_once_and_another_runs_part_is_not_replaced(self, root):
        with open_for_writing(root, PLAN) as writer:
            first = writer.commit(PLAN.shards[0], make_result(PLAN, PLAN.shards[0]))
            before = objects(root)
            assert writer.commit(PLAN.shards[0], make_result(PLAN, PLAN.shards[0])) == first
            assert objects(root) == before
            bucket().pipe_file(f"{root}/token/part-00001.parquet", b"another's")
            with pytest.raises(RunError, match=r"written by another run meanwhile; .* run the same command again"):
                writer.commit(PLAN.shards[1], make_result(PLAN, PLAN.shards[1]))
            assert bucket().cat_file(f"{root}/token/part-00001.parquet") == b"another's"
        assert rerun(root) == [1, 2]
        assert verify(root).is_good

    def test_a_temporary_file_that_fails_is_one_line(self, root, monkeypatch):
        plain = files.Sink.close

        def close(sink):
            plain(sink)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with open_for_writing(root, PLAN) as writer:
            monkeypatch.setattr(files.Sink, "close", close)
            with pytest.raises(RunError, match="a temporary file: input/output error"):
                writer.commit(PLAN.shards[0], make_result(PLAN, PLAN.shards[0]))


class TestLock:
    def test_a_second_run_is_refused_with_the_first_ones_process(self, root):
        with open_for_writing(root, PLAN) as writer:
            before = objects(root)
            with pytest.raises(StoreError, match=rf"process {os.getpid()} on host .* is writing this store; wait for"):
                open_for_writing(root, PLAN)
            assert objects(root) == before
            writer.close()
        open_for_writing(root, PLAN).close()

    def test_the_lock_of_a_killed_process_is_free(self, root):
        script = (
            "import os, signal, sys; sys.path[:0] = sys.argv[2:]\n"
            "from tests.support.store_fakes import make_plan; from bertfeat.choices import Level\n"
            "from bertfeat.store import open_for_writing\n"
            "writer = open_for_writing(sys.argv[1], make_plan(levels=(Level.TOKEN, Level.SENTENCE)))\n"
            "print(os.getpid(), flush=True); signal.pause()\n"
        )
        command = [sys.executable, "-c", script, root, str(ROOT)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            pid = child.stdout.readline().strip()
            with pytest.raises(StoreError, match=f"process {pid} on host"):
                open_for_writing(root, PLAN)
            child.kill()
        with open_for_writing(root, PLAN):
            assert [name for name in objects(root) if "/locks/" in name] == ["_bertfeat/locks/00002.json"]

    def test_a_process_of_another_machine_is_believed_until_its_lease_ends(self, root, monkeypatch):
        open_for_writing(root, PLAN).close()
        there = {**objectlock.this_process(), "host": "elsewhere", "pid": 7, "token": "x", "released": False}
        bucket().pipe_file(f"{root}/_bertfeat/locks/00007.json", json.dumps(there).encode())
        before = objects(root)
        with pytest.raises(
            StoreError, match=r"process 7 on host elsewhere is writing this store, seen \d+ s ago; .*120"
        ):
            open_for_writing(root, PLAN)
        assert objects(root) == before
        monkeypatch.setattr(objectlock, "LEASE_S", 0.0)
        # So short a lease would end before the new owner's first look.
        monkeypatch.setattr(objectlock, "_is_over", lambda unseen_s: False)
        with open_for_writing(root, PLAN):
            assert [name for name in objects(root) if "/locks/" in name] == ["_bertfeat/locks/00008.json"]

    def test_a_run_that_was_taken_for_dead_does_not_finish_the_store(self, root):
        with open_for_writing(root, PLAN) as writer:
            for shard in writer.pending():
                writer.commit(shard, make_result(PLAN, shard))
            bucket().pipe_file(f"{root}/_bertfeat/locks/00002.json", b"{}")
            with pytest.raises(RunError, match="another run has taken this store over"):
                writer.complete()
        assert "manifest.json" not in objects(root)

    def test_the_lock_is_written_again_while_a_run_lasts(self, root, monkeypatch):
        monkeypatch.setattr(objectlock, "BEAT_S", 0.02)
        with open_for_writing(root, PLAN):
            bucket().rm_file(f"{root}/_bertfeat/locks/00001.json")
            while "_bertfeat/locks/00001.json" not in objects(root):
                pass
        assert json.loads(objects(root)["_bertfeat/locks/00001.json"])["released"] is True

    def test_a_process_is_known_by_more_than_its_number(self):
        me = objectlock.this_process()
        assert objectlock.is_here(me)
        assert objectlock.is_running(me)
        assert not objectlock.is_running(me | {"started": "1"})
        assert not objectlock.is_here(me | {"boot": "another"})
        assert not objectlock.is_running({})


class TestServersThatMisbehave:
    def test_one_that_ignores_conditions_is_refused(self, root, s3, monkeypatch):
        with proxy(s3, without_conditions) as url:
            point_at(monkeypatch, url)
            with pytest.raises(StorageError, match="does not refuse to create an object that is there"):
                open_for_writing(root, PLAN)
        point_at(monkeypatch, s3)
        assert objects(root) == {}

    def test_one_that_ignores_ranges_is_one_line(self, root, s3, monkeypatch):
        write_store(root, PLAN, n_bad=1)
        with proxy(s3, without_ranges) as url:
            point_at(monkeypatch, url)
            store = open_store(root)
            with pytest.raises(RunError, match=r"\d+ bytes came where \d+ were asked for; was it replaced meanwhile\?"):
                store.numpy("token", "layer_03")
        point_at(monkeypatch, s3)

    def test_an_answer_that_is_lost_does_no_harm(self, root, s3, monkeypatch):
        lost: list[str] = []

        def lose_once(command, path, headers):
            conditional = any(name.lower() == "if-none-match" for name in headers)
            if not conditional or path in lost:
                return ""
            lost.append(path)
            return "lost"

        with proxy(s3, lose_once) as url:
            point_at(monkeypatch, url)
            write_store(root, PLAN, n_bad=1)
        point_at(monkeypatch, s3)
        assert len(lost) > 10
        assert verify(root).is_good
        write_store(f"{root}-fresh", PLAN, n_bad=1)
        assert result_objects(root) == result_objects(f"{root}-fresh")
