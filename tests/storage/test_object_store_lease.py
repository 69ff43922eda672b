"""A writer that was stopped for longer than its lease, and resumes when another run has taken over the store."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys

import pytest

from bertfeat import verify
from bertfeat.choices import Level
from bertfeat.errors import RunError
from bertfeat.store import commit_shard, objectlock, open_for_writing
from tests.support.object_stores import BUCKET, bucket, objects, result_objects
from tests.support.places import ROOT
from tests.support.store_fakes import make_plan, make_result, write_store

pytestmark = pytest.mark.usefixtures("s3")

BOTH = (Level.TOKEN, Level.SENTENCE)
PLANS = {
    "first": make_plan((3, 2, 2, 3), levels=BOTH, combine="none"),
    "same plan": make_plan((3, 2, 2, 3), levels=BOTH, combine="none"),
    "larger shards": make_plan((5, 5), levels=BOTH, combine="none", shard_bytes=9),
    "other level": make_plan((3, 2, 2, 3), levels=(Level.SENTENCE,), combine="none", kind="sentence"),
}
# The places where a writer may be stopped: (a step, or "checked": right after a look at the lock; how often before).
STOPS = [
    ("plan.written", 1),
    ("part.written", 1),
    ("part.written", 3),
    ("part.synced", 2),
    ("part.durable", 4),
    ("quarantine.written", 2),
    ("receipt.written", 1),
    ("receipt.written", 4),
    ("receipt.durable", 2),
    ("manifest.written", 1),
]
_CHILD = """
import os, signal, sys
url, place, count = sys.argv[1:4]
sys.path[:0] = sys.argv[4:]
from tests.support.store_fakes import write_store
from tests.storage.test_object_store_lease import PLANS
from bertfeat.errors import BertfeatError
from bertfeat.durable import steps
from bertfeat.store.objectfolder import ObjectFolder
left = int(count)
def hook(name):
    global left
    left -= name == place
    if name == place and left == 0:
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
steps.hook = hook
plain = ObjectFolder._before_visible
def before_visible(self):
    plain(self)
    hook("checked")
ObjectFolder._before_visible = before_visible
try:
    write_store(url, PLANS["first"], n_bad=1)
except BertfeatError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def another_machine(monkeypatch):
    """Act as another machine, long after processes of this one have written their locks."""
    monkeypatch.setattr(objectlock, "LEASE_S", 0.0)
    monkeypatch.setattr(objectlock, "_is_over", lambda unseen_s: False)
    monkeypatch.setattr(objectlock, "_machine", lambda: {"boot": "another", "pids": ""})


def take_over(url, plan):
    with open_for_writing(url, plan, overwrite=True) as writer:
        for shard in writer.pending():
            writer.commit(shard, make_result(plan, shard, n_bad=1))
        writer.complete()


def sleep_through_a_takeover(url, place, count, plan):
    """Stop a writer, make the store with another one, and resume the first: it must write nothing more."""
    here = [str(ROOT)]
    command = [sys.executable, "-c", _CHILD, url, place, str(count), *here]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as child:
        try:
            assert child.stdout.readline() == "stopped\n"
            os.waitpid(child.pid, os.WUNTRACED)
            take_over(url, plan)
            before = {name: data for name, data in objects(url).items() if "/locks/" not in name}
            assert verify(url).is_good
            os.kill(child.pid, signal.SIGCONT)
            said, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    assert (child.returncode, said.count("\n")) == (3, 1), said
    # The server of these tests answers 500 where S3 says NoSuchUpload.
    reasons = ["another run", "another one may write", *(["Internal Server Error"] if place == "checked" else [])]
    assert any(reason in said for reason in reasons), said
    assert {name: data for name, data in objects(url).items() if "/locks/" not in name} == before
    assert verify(url).is_good
    assert bucket().call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads", []) == []


@pytest.mark.usefixtures("another_machine")
def test_a_stopped_writer_leaves_no_part_in_the_next_runs_store(root):
    sleep_through_a_takeover(root, "part.written", 3, PLANS["other level"])


@pytest.mark.long
@pytest.mark.usefixtures("another_machine")
@pytest.mark.parametrize("kind", ["same plan", "larger shards", "other level"])
@pytest.mark.parametrize(("place", "count"), [*STOPS, ("checked", 1), ("checked", 4)])
def test_a_stopped_writer_writes_nothing_more_wherever_it_was(root, place, count, kind):
    sleep_through_a_takeover(f"{root}/s", place, count, PLANS[kind])


def test_a_writer_gives_up_before_its_lease_ends_by_its_own_clock(root, monkeypatch):
    plan = PLANS["first"]
    now = objectlock.seconds
    with open_for_writing(root, plan) as writer:
        writer.commit(plan.shards[0], make_result(plan, plan.shards[0]))
        before = objects(root)
        monkeypatch.setattr(objectlock, "seconds", lambda: now() + objectlock.LEASE_S - objectlock.BEAT_S + 1)
        with pytest.raises(RunError, match=r"did not reach the store, for 10\d s, and another one may write"):
            writer.commit(plan.shards[1], make_result(plan, plan.shards[1]))
        assert objects(root) == before
    # No other run has taken it over, so the same process may begin again at once.
    monkeypatch.undo()
    write_store(root, plan)
    assert verify(root).is_good


def test_a_worker_process_looks_at_the_lock_before_each_upload(root):
    plan = PLANS["first"]
    with open_for_writing(root, plan) as writer:
        lease = pickle.loads(pickle.dumps(writer.lease))
        commit_shard(writer.root, plan, plan.shards[0], make_result(plan, plan.shards[0]), lease)
        bucket().pipe_file(f"{root}/_bertfeat/locks/00002.json", b"{}")
        before = objects(root)
        for shard in plan.shards[:2]:
            with pytest.raises(RunError, match="another run has taken this store over"):
                commit_shard(writer.root, plan, shard, make_result(plan, shard), lease)
    assert objects(root) == before


def test_a_new_owner_ends_the_uploads_of_the_one_before_and_no_others(root):
    key = root.removeprefix(f"s3://{BUCKET}/")
    names = ["token/part-00000.parquet", "token/part-00001.parquet", "notes.txt", "word/notes.txt"]
    uploads = {
        name: bucket().call_s3("create_multipart_upload", Bucket=BUCKET, Key=f"{key}/{name}")["UploadId"]
        for name in names
    }
    write_store(root, PLANS["first"])
    found = bucket().call_s3("list_multipart_uploads", Bucket=BUCKET, Prefix=key)["Uploads"]
    assert sorted(upload["Key"].removeprefix(f"{key}/") for upload in found) == ["notes.txt", "word/notes.txt"]
    for name in names[2:]:
        bucket().call_s3("abort_multipart_upload", Bucket=BUCKET, Key=f"{key}/{name}", UploadId=uploads[name])


def test_a_part_larger_than_a_piece_arrives_whole(root):
    plan = make_plan((400_000,), combine="none", dtype="float32")
    write_store(root, plan)
    assert verify(root).is_good
    (part,) = (data for name, data in result_objects(root).items() if name.endswith(".parquet"))
    assert len(part) > 11 << 20
