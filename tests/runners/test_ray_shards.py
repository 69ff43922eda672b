"""Fake shards on a real Ray cluster whose actors die, fail and hang."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_runs import Cluster, cluster
from tests.support.runner_fakes import MakeFake, is_alive, wait_until

pytestmark = [pytest.mark.promise("dead-worker"), pytest.mark.ray]
# Start Ray as a run does, then join it with the token and with another one.
JOIN = """
import os, stat, subprocess, sys
from bertfeat.runners.ray import connection
with connection("local"):
    import ray
    from ray._common.usage.usage_lib import usage_stats_enabled
    token = os.environ["RAY_AUTH_TOKEN_PATH"]
    print(*(oct(stat.S_IMODE(os.stat(path).st_mode)) for path in (token, os.path.dirname(token))))
    print(usage_stats_enabled())
    join = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"
    address = ray.get_runtime_context().gcs_address
    other = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    other |= {"HOME": sys.argv[1], "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
    for environment in (dict(os.environ), other):
        print(subprocess.run([sys.executable, "-c", join, address], env=environment).returncode)
"""


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("ray")) as started:
        yield started


def run(ray: Cluster, folder: Path, n_shards: int, deeds: dict[str, str]) -> tuple[dict[str, Any], MakeFake, str]:
    driver = ray.start(ray.driver(n_shards, folder, json.dumps(deeds)))
    out, err = driver.communicate(timeout=150)
    heard = [line for line in out.splitlines() if line.startswith("HEARD ")]
    assert heard, err
    return json.loads(heard[0].removeprefix("HEARD ")), MakeFake(folder / "notes"), err


def test_every_shard_is_done_once_by_two_actors_that_load_once(ray, tmp_path):
    heard, fake, err = run(ray, tmp_path, 12, {})
    assert heard == {"shards": list(range(12)), "error": None}
    assert fake.done() == list(range(12))
    assert 1 <= len(fake.noted("start")) <= 2
    assert "Traceback" not in err


def test_an_actor_that_dies_is_replaced_and_a_shard_that_fails_again_is_named(ray, tmp_path):
    deeds = {"encode:3": "die once", "encode:6": "die", "prepare:8": "bug"}
    heard, fake, _ = run(ray, tmp_path, 10, deeds)
    assert heard["shards"] == [0, 1, 2, 3, 4, 5, 7, 9]
    kind, message, code = heard["error"]
    assert (kind, code) == ("RunError", 3)
    assert message.startswith("shards failed twice: 00006 (ActorDiedError: ")
    assert "00008 (KeyError: 'a bug at prepare:8'); the others are done: run the same command again" in message
    assert set(fake.done()) == {0, 1, 2, 3, 4, 5, 7, 9}
    assert len(fake.noted("encode:3")) == 2


def test_an_error_raised_on_purpose_ends_the_run_as_it_is(ray, tmp_path):
    heard, fake, _ = run(ray, tmp_path, 6, {"encode:5": "bad input"})
    assert heard["error"] == ["InputError", "corpus.txt:7: no such thing", 2]
    wait_until(lambda: not any(map(is_alive, fake.noted("start"))))


def test_actors_that_do_not_start_end_the_run(ray, tmp_path):
    assert run(ray, tmp_path, 2, {"start": "bad config"})[0]["error"][:2] == ["ConfigError", "--layers 99 is wrong"]
    kind, said, _ = run(ray, tmp_path, 2, {"start": "exit"})[0]["error"]
    assert kind == "RunError"
    assert said.startswith("workers do not start (ActorDiedError: ")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_actors_never_outlive_their_driver(ray, tmp_path, number):
    driver = ray.start(ray.driver(4, tmp_path, json.dumps({f"encode:{n}": "sleep" for n in range(4)})))
    fake = MakeFake(tmp_path / "notes")
    wait_until(lambda: sum(len(fake.noted(f"encode:{n}")) for n in range(4)) == 2)
    workers = fake.noted("start")
    assert len(workers) == 2
    assert all(map(is_alive, workers))
    driver.send_signal(number)
    driver.communicate(timeout=60)
    wait_until(lambda: not any(map(is_alive, workers)), 30)
    assert fake.done() == []


def test_a_ray_started_here_requires_its_token(tmp_path):
    """Only this user can read the token, and usage statistics are off."""
    done = subprocess.run(
        [sys.executable, "-c", JOIN, str(tmp_path)], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["0o600 0o700", "False", "0"]
    assert lines[3] != "0"
    assert "authentication" in done.stderr.lower()
