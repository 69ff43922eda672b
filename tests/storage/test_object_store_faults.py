"""Random failures of network and server, and kills: the right bytes, or one line, and the same command gives them."""

from __future__ import annotations

import dataclasses
import random
import signal
import subprocess
import sys
import time
import traceback

import numpy as np
import pytest

from bertfeat import open_store, verify
from bertfeat.choices import Level
from bertfeat.errors import BertfeatError, CheckFailed
from bertfeat.store.writer import open_for_writing
from tests.support.object_stores import BUCKET, FAULTS, bucket, forget_clients, point_at, proxy, result_objects
from tests.support.places import ROOT
from tests.support.store_fakes import make_plan, make_result, write_store

PLAN = make_plan((7,), combine="none")
OTHER = make_plan((2,), levels=(Level.SENTENCE,), combine="none", kind="other")


class Faults:
    """Faults that begin with the nth request and last for some requests."""

    def __init__(self, rng):
        self.kind = rng.choice(FAULTS)
        self.first, self.n_left = rng.randrange(40), rng.choice([1, 1, 2, 4, 30])
        self.command = rng.choice([None, None, "GET", "PUT", "POST", "DELETE", "HEAD"])
        self.n_made = 0

    def __call__(self, command, path, headers):
        self.first -= 1
        fits = self.command in (None, command)
        # Only a completed upload is not there any more.
        fits = fits and (self.kind != "after 404 NoSuchUpload" or (command == "POST" and "uploadId=" in path))
        if self.first >= 0 or not fits or self.n_left == 0:
            return ""
        self.n_left -= 1
        self.n_made += 1
        return self.kind

    def __str__(self):
        return f"{self.kind} on {self.command or 'any request'}, {self.n_made} times"


@pytest.fixture
def few_tries(monkeypatch):
    """Give up on a request after a few tries; the waiting between them is what takes time."""
    from s3fs import S3FileSystem

    monkeypatch.setattr(S3FileSystem, "retries", 2)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


def write(root, plan=PLAN, **opening):
    with open_for_writing(root, plan, **opening) as writer:
        for shard in writer.pending():
            writer.commit(shard, make_result(plan, shard, n_bad=1))
        writer.complete()


def read(root, values):
    """Read a store in every way; whatever comes must be right."""
    report = verify(root)
    if not report.is_good:
        raise CheckFailed(str(report.problems[0]))
    store = open_store(root)
    assert np.array_equal(store.numpy("token", "layer_03"), values)
    batches = [batch.vectors for batch in store.batches("token", "layer_03", batch_size=2)]
    assert np.array_equal(np.concatenate(batches), values)
    assert store.bad_rows()


class Drill:
    def __init__(self, root, seed):
        self.root, self.random, self.faults = root, random.Random(seed), None
        self.wrong: list[str] = []
        write(f"{root}-whole")
        self.whole, store = result_objects(f"{root}-whole"), open_store(f"{root}-whole")
        self.manifest, self.values = store.manifest, store.numpy("token", "layer_03")

    def go(self, what, action):
        """Do something while requests fail; note how it ends."""
        faults = self.faults = Faults(self.random)
        try:
            action()
            outcome = "done"
        except BertfeatError as error:
            outcome = "one line"
            if "\n" in str(error):
                self.wrong.append(f"{what}, {faults}: {error}")
        except Exception as error:
            outcome = "raw"
            self.wrong.append(f"{what}, {faults}: {error!r} {traceback.format_exc(limit=-6)}")
        finally:
            self.faults = None
        return outcome, str(faults)

    def one(self, number):
        root = f"{self.root}/{number}"
        what = self.random.choice(["new", "new", "overwritten"])
        if what == "overwritten":
            write(root, OTHER)
        outcome, faults = self.go(what, lambda: write(root, overwrite=what == "overwritten"))
        if outcome != "done":
            try:
                write(root)
            except BertfeatError:
                write(root, overwrite=True)
        made, whole = ({n: d for n, d in o.items() if "manifests" not in n} for o in (result_objects(root), self.whole))
        newest = dataclasses.replace(open_store(root).manifest, version=0, first_version=0)
        if made != whole or newest != self.manifest:
            self.wrong.append(f"{what}, {faults}, {outcome}: not the right bytes")
        self.go("read", lambda: read(root, self.values))


def drill(s3, root, n_tries, seed):
    made = None

    def change(*request):
        return made.faults(*request) if made and made.faults else ""

    with proxy(s3, change) as url, pytest.MonkeyPatch.context() as patch:
        point_at(patch, url)
        made = Drill(root, seed)
        for number in range(n_tries):
            made.one(number)
    forget_clients()
    return made


@pytest.mark.promise("store-faults")
@pytest.mark.usefixtures("few_tries")
@pytest.mark.parametrize(
    ("n_tries", "seed"), [(3, 15), *(pytest.param(35, seed, marks=pytest.mark.long) for seed in range(1, 5))]
)
def test_failing_runs_end_with_the_right_bytes_or_one_line(s3, n_tries, seed):
    made = drill(s3, f"s3://{BUCKET}/{seed}/faults", n_tries, seed)
    assert made.wrong == []


CHILD = """
import sys
sys.path[:0] = sys.argv[2:]
from tests.support.store_fakes import make_plan, write_store
import bertfeat.store, pandas, s3fs
print("ready", flush=True)
write_store(sys.argv[1], make_plan((3, 2, 2, 3), combine="none"), n_bad=1)
"""
KILLED = make_plan((3, 2, 2, 3), combine="none")


@pytest.mark.promise("kill-object")
@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("n_wanted", [2, pytest.param(20, marks=pytest.mark.long)])
def test_random_kills_of_a_writer_lose_nothing(n_wanted):
    start = time.monotonic()
    write_store(f"s3://{BUCKET}/whole-{n_wanted}", KILLED, n_bad=1)
    duration_s = time.monotonic() - start
    whole = result_objects(f"s3://{BUCKET}/whole-{n_wanted}")
    root, chance, n_kills = f"s3://{BUCKET}/killed-{n_wanted}", random.Random(9), 0
    while n_kills < n_wanted:
        command = [sys.executable, "-c", CHILD, root, str(ROOT)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as child:
            assert child.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0.2, 0.8) * duration_s)
            child.kill()
        n_kills += child.returncode == -signal.SIGKILL
        # Each object is whole, whenever the kill came.
        assert result_objects(root).items() <= whole.items()
        if child.returncode == 0:
            bucket().rm(root, recursive=True)
    write_store(root, KILLED, n_bad=1)
    assert result_objects(root) == whole
    assert verify(root).is_good
