"""Random failures of network and server: the right bytes, or one line, and then the same command gives them."""

from __future__ import annotations

import dataclasses
import random
import traceback

import numpy as np
import pytest

from bertfeat import open_store, verify
from bertfeat.choices import Level
from bertfeat.errors import BertfeatError, CheckFailed
from bertfeat.store.writer import open_for_writing
from tests.support.object_stores import BUCKET, FAULTS, forget_clients, point_at, proxy, result_objects
from tests.support.store_fakes import make_plan, make_result

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
