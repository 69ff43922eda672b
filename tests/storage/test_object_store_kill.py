"""Kill drill against an object store: random SIGKILLs, of runs that resume as well, and always the same bytes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

from bertfeat.store.verification import verify
from tests.support.object_stores import BUCKET, bucket, result_objects
from tests.support.places import ROOT
from tests.support.store_fakes import make_plan, write_store

pytestmark = pytest.mark.promise("kill-object")

CHILD = """
import sys
sys.path[:0] = sys.argv[2:]
from tests.support.store_fakes import make_plan, write_store
import bertfeat.store, pandas, s3fs
print("ready", flush=True)
write_store(sys.argv[1], make_plan((3, 2, 2, 3), combine="none"), n_bad=1)
"""
PLAN = make_plan((3, 2, 2, 3), combine="none")
SEED = 9


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("n_wanted", [2, pytest.param(20, marks=pytest.mark.long)])
def test_random_kills_of_a_writer_lose_nothing(n_wanted):
    start = time.monotonic()
    write_store(f"s3://{BUCKET}/whole-{n_wanted}", PLAN, n_bad=1)
    duration_s = time.monotonic() - start
    whole = result_objects(f"s3://{BUCKET}/whole-{n_wanted}")
    root, chance, n_kills = f"s3://{BUCKET}/killed-{n_wanted}", random.Random(SEED), 0
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
    write_store(root, PLAN, n_bad=1)
    assert result_objects(root) == whole
    assert verify(root).is_good
