"""Real extractions on Ray: the bytes of a local run, and the same again after actors or the driver were killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bertfeat.extraction.run import append, extract
from bertfeat.records import Receipt
from bertfeat.store.verification import verify
from tests.support.cli_runs import flags, three_shards
from tests.support.drill import orphans, result_files, write_corpus
from tests.support.families import build_model
from tests.support.ray_runs import Cluster, actors_under, cluster
from tests.support.ray_stops import prepare
from tests.support.runner_fakes import is_alive, wait_until

BERTFEAT = [sys.executable, "-m", "bertfeat", "extract"]
# Runs command lines on one Ray, and copies the store between them.
ON_ONE_RAY = """
import json, shutil, sys
from bertfeat.cli import main
from bertfeat.runners.ray import connection
_, commands, store, copy = sys.argv
with connection(None):
    for sys.argv in json.loads(commands):
        try:
            main()
        except SystemExit as done:
            assert not done.code, done.code
        if "--append" not in sys.argv:
            shutil.copytree(store, copy)
"""
STOPPING = [sys.executable, "-m", "tests.support.ray_stops", "extract"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    model = build_model("bert", folder / "model", num_hidden_layers=2)
    made = three_shards(folder, model)
    return made | {"inputs": str(write_corpus(folder / "corpus.jsonl", 60, bad_every=9)), "bad_rows": "quarantine"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings):
    store = extract(output=tmp_path_factory.mktemp("whole") / "s", **settings)
    assert len(store.plan.shards) > 5
    return result_files(store.path)


def check(root: Path, whole: dict[str, bytes]) -> None:
    assert result_files(root) == whole
    assert orphans(root) == []
    assert verify(root).is_good


def test_a_run_on_ray_started_here_gives_the_bytes_of_a_local_run(tmp_path, settings, whole):
    """And so does an append that follows."""
    root, local, later = tmp_path / "s", tmp_path / "local", str(tmp_path / "later.jsonl")
    lines = write_corpus(tmp_path / "all.jsonl", 90).read_text().splitlines(keepends=True)
    Path(later).write_text("".join(lines[60:]))
    on_ray = [f"-o{root}", "--runner=ray", "--workers=1", "-v"]
    commands = [["bertfeat", "extract", *inputs, *on_ray] for inputs in (flags(settings), [later, "--append"])]
    run = [sys.executable, "-c", ON_ONE_RAY, json.dumps(commands), str(root), str(tmp_path / "first")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count(f" {root}\n") == 2
    assert "documents appended\n" in done.stdout
    check(tmp_path / "first", whole)
    extract(output=local, **settings)
    append(local, later)
    check(root, result_files(local))


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("ray")) as started:
        yield started


def on(ray: Cluster, settings: dict[str, Any], root: Path, *more: str) -> list[str]:
    """Return the flags of a run on a cluster."""
    return [*flags(settings), f"-o{root}", "--runner=ray", f"--ray-address={ray.address}", "--workers=2", *more]


def stopped(pid: Path) -> int:
    """Wait for the worker that stops; return its process id."""
    wait_until(pid.exists, 120)
    return int(pid.read_text())


@pytest.mark.ray
def test_local_workers_and_actors_give_the_same_bytes_and_manifest(tmp_path, settings, whole, ray: Cluster):
    extract(output=tmp_path / "local", **settings, workers=2)
    check(tmp_path / "local", whole)
    for name, address in (("driver", ray.address), ("client", ray.client_address)):
        driver = ray.start([*BERTFEAT, *on(ray, settings, tmp_path / name, f"--ray-address={address}")])
        _, errors = driver.communicate(timeout=150)
        assert driver.returncode == 0, errors
        check(tmp_path / name, whole)


@pytest.mark.ray
def test_a_finished_store_needs_no_ray_and_another_plan_is_refused(tmp_path, settings, whole, ray: Cluster):
    root = tmp_path / "s"
    extract(output=root, **settings)
    again = ray.start([*BERTFEAT, *on(ray, settings, root)])
    assert "already complete; nothing to do" in again.communicate(timeout=60)[0]
    other = ray.start([*BERTFEAT, *on(ray, settings, root, "--store-dtype=float32")])
    assert "--store-dtype was " in other.communicate(timeout=60)[1]
    assert other.returncode == 2
    check(root, whole)


@pytest.mark.ray
def test_actors_share_a_cache_and_give_the_bytes_of_a_local_run(tmp_path, settings, ray: Cluster):
    """With a cache that holds a part of the documents, and an actor that is killed while it writes to the cache."""
    cache, kept = tmp_path / "cache", tmp_path / "kept"
    some = settings | {"inputs": str(write_corpus(tmp_path / "some.jsonl", 25))}
    extract(output=tmp_path / "some", cache=cache, **some)
    shutil.copytree(cache, kept)
    local = extract(output=tmp_path / "local", cache=kept, **settings)
    n_known, n_documents = (sum(found) for found in zip(*map(documents, local.receipts()), strict=True))
    assert 0 < n_known < n_documents
    pid = prepare(tmp_path, "vectors.written")
    with_cache = on(ray, settings, tmp_path / "s", f"--cache={cache}")
    driver = ray.start([*STOPPING, *with_cache])
    os.kill(stopped(pid), signal.SIGKILL)
    _, errors = driver.communicate(timeout=150)
    assert driver.returncode == 0, errors
    check(tmp_path / "s", result_files(local.path))
    again = ray.start([*BERTFEAT, *on(ray, settings, tmp_path / "again", f"--cache={cache}")])
    said, errors = again.communicate(timeout=150)
    assert again.returncode == 0, errors
    assert f"documents from the cache  {n_documents}\n" in said


def documents(receipt: Receipt) -> tuple[int, int]:
    """Return how many documents of a shard came from the cache, and how many it has."""
    return receipt.notes["n_cached_documents"], receipt.counts["n_documents"]


@pytest.mark.ray
def test_a_killed_driver_takes_the_actors_of_the_ray_that_it_started_along(tmp_path, settings, whole):
    root = tmp_path / "s"
    started = [*BERTFEAT, *flags(settings), f"-o{root}", "--runner=ray", "--workers=2"]
    driver = subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: list(root.rglob("*.parquet")), 120)
    helpers = psutil.Process(driver.pid).children(recursive=True)
    actors = actors_under(driver.pid)
    assert len(actors) == 2
    driver.kill()
    driver.wait()
    extract(output=root, **settings)
    check(root, whole)
    wait_until(lambda: not any(map(is_alive, actors)), 30)
    check(root, whole)
    # Ray's agents may run a minute longer; they run no code of bertfeat.
    for helper in helpers:
        with contextlib.suppress(psutil.Error):
            helper.kill()
