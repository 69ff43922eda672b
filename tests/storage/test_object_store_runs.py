"""Runs on a cluster with a store in an object store: what is refused, and (marked `ray`) a real run."""

from __future__ import annotations

import subprocess
import sys

import polars as pl
import pytest

from bertfeat import extract, verify
from bertfeat.errors import InputError
from tests.support.cli_runs import flags, three_shards
from tests.support.command_line import bertfeat
from tests.support.drill import result_files, write_corpus
from tests.support.object_stores import objects, result_objects

pytestmark = pytest.mark.usefixtures("one_thread", "s3")


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
