"""Real extractions on Ray: the bytes of a local run, and the same again after the driver was killed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bertfeat.extraction.run import append, extract
from bertfeat.store.verification import verify
from tests.support.command_line import flags_of
from tests.support.drill import orphans, result_files, three_shards, write_corpus
from tests.support.ray_runs import Cluster, actors_under, cluster
from tests.support.runner_fakes import is_alive, wait_until

BERTFEAT = [sys.executable, "-m", "bertfeat", "extract"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory, tiny_folder):
    folder = tmp_path_factory.mktemp("corpus")
    made = three_shards(folder, tiny_folder)
    return made | {"inputs": str(write_corpus(folder / "corpus.jsonl", 40, bad_every=9)), "bad_rows": "quarantine"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings):
    store = extract(output=tmp_path_factory.mktemp("whole") / "s", **settings)
    assert len(store.plan.shards) > 3
    return result_files(store.path)


def check(root: Path, whole: dict[str, bytes]) -> None:
    assert result_files(root) == whole
    assert orphans(root) == []
    assert verify(root).is_good


@pytest.mark.promise("workers")
def test_a_run_on_ray_started_here_gives_the_bytes_of_a_local_run(tmp_path, settings, whole):
    command = [*BERTFEAT, *flags_of(settings), f"-o{tmp_path / 's'}", "--runner=ray", "--workers=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    check(tmp_path / "s", whole)


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("ray")) as started:
        yield started


def on(ray: Cluster, words: list[str], root: Path, *more: str) -> str:
    """Run a command line on a cluster; return what it prints."""
    command = [*BERTFEAT, *words, f"-o{root}", "--runner=ray", f"--ray-address={ray.address}", "--workers=2", *more]
    driver = ray.start(command)
    said, errors = driver.communicate(timeout=150)
    assert driver.returncode == 0, errors
    return said


@pytest.mark.ray
def test_actors_of_a_driver_and_of_a_client_give_the_bytes_of_local_workers(tmp_path, settings, whole, ray: Cluster):
    extract(output=tmp_path / "local", **settings, workers=2)
    check(tmp_path / "local", whole)
    for name, address in (("driver", ray.address), ("client", ray.client_address)):
        on(ray, flags_of(settings), tmp_path / name, f"--ray-address={address}")
        check(tmp_path / name, whole)
    assert "already complete; nothing to do" in on(ray, flags_of(settings), tmp_path / "driver")


@pytest.mark.promise("workers")
@pytest.mark.ray
def test_an_append_on_ray_gives_the_bytes_of_a_local_one(tmp_path, settings, ray: Cluster):
    lines = write_corpus(tmp_path / "all.jsonl", 70).read_text().splitlines(keepends=True)
    (tmp_path / "later.jsonl").write_text("".join(lines[40:]))
    store = extract(output=tmp_path / "s", **settings)
    local = shutil.copytree(store.path, tmp_path / "local")
    assert "documents appended\n" in on(ray, [str(tmp_path / "later.jsonl")], store.path, "--append", "-v")
    append(local, str(tmp_path / "later.jsonl"))
    check(store.path, result_files(local))


@pytest.mark.promise("kill-cache")
@pytest.mark.ray
def test_actors_share_a_cache_and_give_the_bytes_of_a_local_run(tmp_path, settings, ray: Cluster):
    """With a cache that holds a part of the documents."""
    cache, kept = tmp_path / "cache", tmp_path / "kept"
    some: dict[str, Any] = settings | {"inputs": str(write_corpus(tmp_path / "some.jsonl", 25))}
    extract(output=tmp_path / "some", cache=cache, **some)
    shutil.copytree(cache, kept)
    local = extract(output=tmp_path / "local", cache=kept, **settings)
    n_documents = sum(receipt.counts["n_documents"] for receipt in local.receipts())
    on(ray, flags_of(settings), tmp_path / "s", f"--cache={cache}")
    check(tmp_path / "s", result_files(local.path))
    said = on(ray, flags_of(settings), tmp_path / "again", f"--cache={cache}")
    assert f"documents from the cache  {n_documents}\n" in said


@pytest.mark.ray
def test_a_killed_driver_takes_the_actors_of_the_ray_that_it_started_along(tmp_path, settings, whole):
    root = tmp_path / "s"
    started = [*BERTFEAT, *flags_of(settings), f"-o{root}", "--runner=ray", "--workers=2"]
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
