"""Drill on Ray: actors and drivers killed or stopped at random, in a folder and in an object store; the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from bertfeat.store.verification import verify
from tests.support.drill import orphans, result_files
from tests.support.object_stores import BUCKET, bucket, result_objects
from tests.support.ray_runs import PLAN, cluster, run
from tests.support.runner_fakes import is_alive, wait_until

pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = pytest.mark.ray

DRIVER = [sys.executable, "-m", "tests.support.ray_runs"]
DEEDS = ["kill actor", "kill driver", "stop actor and kill driver"]
N_TRIES = int(os.environ.get("BERTFEAT_DRILL_RAY", "20"))
SEED = 15


@pytest.fixture(scope="module")
def ray(tmp_path_factory, s3):
    with cluster(tmp_path_factory.mktemp("ray")) as started:
        yield started


def results(root):
    return result_files(root) if isinstance(root, Path) else result_objects(root)


def n_parts(root):
    parts = root.glob("token/*.parquet") if isinstance(root, Path) else bucket().glob(f"{root}/token/*.parquet")
    return len(list(parts))


class Drill:
    def __init__(self, ray, whole):
        self.ray, self.whole, self.random = ray, whole, random.Random(SEED)
        self.n_in_time = 0

    def one(self, deed, root):
        driver = self.ray.start([*DRIVER, self.ray.address, str(root)])
        n_wanted = self.random.randrange(len(PLAN.shards) - 1)
        wait_until(lambda: driver.poll() is not None or (n_parts(root) >= n_wanted and self.ray.actors()), 240)
        actors = [pid for pid in self.ray.actors() if is_alive(pid)] if driver.poll() is None else []
        actor = self.random.choice(actors) if actors else None
        time.sleep(self.random.uniform(0, 0.3))
        try:
            self.do(deed, driver, actor)
            _, said = driver.communicate(timeout=240)
            assert "Traceback" not in said, said
            if driver.returncode != 0:
                self.rerun(root)
            assert results(root) == self.whole
        finally:
            self.send(signal.SIGCONT, actor)
        # An actor that outlives its run writes the same bytes under the same names.
        wait_until(lambda: not self.ray.actors(), 60)
        assert results(root) == self.whole
        assert verify(root).is_good
        if isinstance(root, Path) and not deed.startswith("stop"):
            assert orphans(root) == []
        self.n_in_time += actor is not None

    def do(self, deed, driver, actor):
        if "actor" in deed:
            self.send(signal.SIGKILL if deed == "kill actor" else signal.SIGSTOP, actor)
        if "kill driver" in deed:
            driver.kill()

    def send(self, number, pid):
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, number)

    def rerun(self, root):
        """Run the same again, on Ray or here."""
        if self.random.random() < 0.3:
            again = self.ray.start([*DRIVER, self.ray.address, str(root)])
            _, said = again.communicate(timeout=240)
            assert again.returncode == 0, said
        run(root)


def test_killed_and_stopped_actors_and_drivers_lose_and_add_nothing(tmp_path, ray):
    run(tmp_path / "whole")
    drill = Drill(ray, result_files(tmp_path / "whole"))
    for number in range(N_TRIES):
        deed = DEEDS[number % len(DEEDS)]
        drill.one(deed, tmp_path / f"s{number}" if number % 2 else f"s3://{BUCKET}/ray/{number}/s")
    assert drill.n_in_time > N_TRIES // 2
