"""Drill on Ray: actors and drivers killed or stopped at random, in a folder and in an object store; the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bertfeat.errors import StoreError
from bertfeat.store import verify
from tests.support.drill import orphans, result_files
from tests.support.object_stores import BUCKET, bucket, objects, result_objects
from tests.support.ray_runs import cluster
from tests.support.ray_stores import PLAN, run
from tests.support.runner_fakes import is_alive, wait_until

pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = pytest.mark.ray

DRIVER = [sys.executable, "-m", "tests.support.ray_stores"]
DEEDS = ["kill actor", "kill driver", "stop actor", "stop driver", "stop actor and kill driver"]
N_TRIES = 20
SEED = 15


@pytest.fixture(scope="module")
def ray(tmp_path_factory, s3):
    with cluster(tmp_path_factory.mktemp("ray")) as started:
        yield started


class Place:
    """A store that a drill reads while others write it: a folder, or an object store."""

    def __init__(self, root):
        self.root = root

    def n_receipts(self):
        if isinstance(self.root, Path):
            return len(list((self.root / "_bertfeat" / "receipts").glob("*.json")))
        return len(bucket().glob(f"{self.root}/_bertfeat/receipts/*.json"))

    def results(self):
        return result_files(self.root) if isinstance(self.root, Path) else result_objects(self.root)

    def everything(self):
        if not isinstance(self.root, Path):
            return objects(self.root)
        return {str(file): file.read_bytes() for file in self.root.rglob("*") if file.is_file()}

    def check(self, whole):
        assert self.results() == whole
        assert verify(self.root).is_good
        strays = orphans(self.root) if isinstance(self.root, Path) else bucket().glob(f"{self.root}/_bertfeat/tmp/*")
        assert strays == []


class Drill:
    def __init__(self, ray, whole):
        self.ray, self.whole, self.random = ray, whole, random.Random(SEED)
        self.command = [*DRIVER, ray.address]
        self.outcomes: Counter[str] = Counter()

    def one(self, deed, place):
        driver = self.ray.start([*self.command, str(place.root)])
        others: list[int] = []
        try:
            n_wanted = self.random.randrange(len(PLAN.shards) - 1)
            wait_until(lambda: driver.poll() is not None or (place.n_receipts() >= n_wanted and self.ray.actors()), 240)
            actors = [pid for pid in self.ray.actors() if is_alive(pid)]
            if driver.poll() is not None or not actors:
                self.outcomes[f"{deed}: too late"] += 1
            else:
                others = [self.random.choice(actors)]
                time.sleep(self.random.uniform(0, 0.3))
                self.do(deed, driver, others[0], place)
            _, said = driver.communicate(timeout=240)
            assert "Traceback" not in said, said
            if driver.returncode != 0:
                self.finish(place)
            place.check(self.whole)
            before = place.everything()
        finally:
            for pid in [driver.pid, *others]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        # A process that continues now finds a store of another run.
        wait_until(lambda: not any(map(is_alive, others)) or not self.ray.actors(), 60)
        assert place.everything() == before
        self.outcomes[f"{deed}: {'done' if driver.returncode == 0 else 'rerun'}"] += 1

    def do(self, deed, driver, actor, place):
        with contextlib.suppress(ProcessLookupError):
            if "actor" in deed:
                os.kill(actor, signal.SIGKILL if deed == "kill actor" else signal.SIGSTOP)
            if deed == "stop driver":
                os.kill(driver.pid, signal.SIGSTOP)
            if deed.endswith("kill driver"):
                driver.kill()
            elif deed.startswith("stop"):
                # Refused while the driver lives, even stopped; without an error, the store was already complete.
                with contextlib.suppress(StoreError):
                    run(place.root)
                    assert driver.poll() is not None
                os.kill(driver.pid if deed == "stop driver" else actor, signal.SIGCONT)

    def finish(self, place):
        """Run the same again, on Ray or here; an actor that is stopped in a commit may delay that."""
        if self.random.random() < 0.3:
            again = self.ray.start([*self.command, str(place.root)])
            _, said = again.communicate(timeout=240)
            assert again.returncode == 0 or "end its Ray job" in said, said
        try:
            run(place.root)
        except StoreError as error:
            self.outcomes["rerun refused: " + str(error)[-60:]] += 1
            wait_until(lambda: not self.ray.actors(), 120)
            run(place.root)


def test_killed_and_stopped_actors_and_drivers_lose_and_add_nothing(tmp_path, ray, capsys):
    run(tmp_path / "whole")
    drill = Drill(ray, result_files(tmp_path / "whole"))
    for number in range(N_TRIES):
        deed = DEEDS[number % len(DEEDS)]
        in_folder = number % (2 * len(DEEDS)) < len(DEEDS)
        place = Place(tmp_path / f"s{number}" if in_folder else f"s3://{BUCKET}/ray/{number}/s")
        drill.one(deed, place)
        with capsys.disabled():
            print(f"\n{number} {deed} {place.root}: {dict(drill.outcomes)}", end="")
