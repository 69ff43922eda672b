"""Runs on a cluster with a store in an object store: tries, the fence, and (marked `ray`) a real run."""

from __future__ import annotations

import pickle
import subprocess
import sys

import polars as pl
import pytest

from bertfeat import extract, verify
from bertfeat.errors import InputError, RunError
from bertfeat.runners.fence import end_earlier_runs, fence_around
from bertfeat.runners.marks import Marks
from bertfeat.runners.tries import Tries
from bertfeat.storage import as_path
from bertfeat.store import layout
from tests.support.cli_runs import flags, three_shards
from tests.support.command_line import bertfeat
from tests.support.drill import result_files, write_corpus
from tests.support.object_stores import objects, result_objects

pytestmark = pytest.mark.usefixtures("one_thread", "s3")


def test_tries_are_counted_as_in_a_folder(root):
    folder = as_path(root) / layout.TMP
    assert [Tries(folder).begin("00007") for _ in range(4)] == [True, True, True, False]
    tries = Tries(folder)
    assert tries.count("00007") == 3
    assert tries.reason("00007").startswith("its worker died each time")
    tries.explain("00007", "KeyError: 'ü'")
    assert tries.reason("00007") == "KeyError: 'ü'"
    tries.take_back("00007")
    assert tries.count("00007") == 2
    tries.forget("00007")
    assert tries.count("00007") == 0
    # What the end of the run has removed is not created again.
    Marks(folder).write("try-00007.0.tmp", "late")
    assert objects(root) == {}


def test_the_fence_of_a_run_that_has_ended_keeps_its_workers_out(root):
    folder = as_path(root) / layout.TMP
    with fence_around(folder) as fence:
        copy = pickle.loads(pickle.dumps(fence))
        with copy.held():
            assert len(objects(root)) == 1
    with pytest.raises(RunError, match=r"run-\w+\.tmp: not there on .*: its run has ended"), copy.held():
        pass
    assert objects(root) == {}


def test_the_next_run_removes_what_a_killed_one_left(root, tmp_path, tiny_folder):
    folder = as_path(root) / layout.TMP
    settings = three_shards(tmp_path, tiny_folder) | {"inputs": str(write_corpus(tmp_path / "c.jsonl", 12))}
    extract(output=root, **settings)
    before = result_objects(root)
    Marks(folder).create("run-0123.tmp")
    Tries(folder).begin("00001")
    end_earlier_runs(as_path(root))
    extract(output=root, **settings)
    assert not [name for name in objects(root) if "/tmp/" in name]
    assert result_objects(root) == before


def test_standard_input_and_frames_do_not_reach_other_machines(root):
    found = bertfeat("extract", "-", "-o", root, "--runner", "ray", stdin=b"one\ntwo\n")
    assert found.code == 2
    assert "- cannot be read by the machines of a cluster; upload it first, and name the object" in found.err
    with pytest.raises(InputError, match=r"^a data frame cannot be read by the machines of a cluster; upload it first"):
        extract(pl.DataFrame({"text": ["one"]}), root, runner="ray")
    assert objects(root) == {}


@pytest.mark.ray
def test_actors_write_to_an_object_store(root, tmp_path, tiny_folder):
    from tests.support.ray_runs import cluster

    settings = three_shards(tmp_path, tiny_folder)
    settings |= {"inputs": str(write_corpus(tmp_path / "c.jsonl", 40, bad_every=9)), "bad_rows": "quarantine"}
    local = extract(output=tmp_path / "local", **settings)
    with cluster(tmp_path) as ray:
        command = [sys.executable, "-m", "bertfeat", "extract", *flags(settings), f"-o{root}", "--runner=ray"]
        done = subprocess.run(
            [*command, f"--ray-address={ray.address}", "--workers=2"],
            env=dict(ray.environment),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert result_objects(root) == result_files(local.path)
    assert verify(root).is_good
    assert not [name for name in objects(root) if "/tmp/" in name]
