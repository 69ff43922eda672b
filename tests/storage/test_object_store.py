"""Stores and corpora in an object store, on a server that speaks S3: the same as in a folder."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import polars as pl
import pytest

from bertfeat import build_index, extract, open_index, open_store, verify
from bertfeat.errors import StorageError, StoreError
from tests.support.command_line import flags_of, good
from tests.support.drill import result_files, three_shards, write_corpus
from tests.support.object_stores import BUCKET, objects, result_objects, upload

pytestmark = pytest.mark.usefixtures("one_thread", "s3")


@pytest.fixture(scope="module")
def settings(tiny_folder):
    levels = {"levels": "token,span,sentence", "spans": r"\w+ \w+"}
    return {"model": str(tiny_folder), **levels, "layers": "-1,-2", "shard_bytes": 25_000}


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory, s3):
    """The same objects extracted to a folder and to an object store."""
    folder = tmp_path_factory.mktemp("whole")
    write_corpus(folder / "b.jsonl", 16, bad_every=7)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a first file"}\n' * 3))
    for path in folder.iterdir():
        upload(path, f"s3://{BUCKET}/in/{path.name}")
    given = settings | {"bad_rows": "quarantine"}
    local = extract(f"s3://{BUCKET}/in/*.jsonl*", folder / "out", **given)
    there = extract(f"s3://{BUCKET}/in/*.jsonl*", f"s3://{BUCKET}/out/", **given)
    return local, there


@pytest.mark.promise("workers")
def test_the_bytes_are_those_of_a_folder(whole, settings, tmp_path):
    local, there = whole
    assert str(there.path) == f"s3://{BUCKET}/out"
    assert len(there.manifest.shards) > 1
    made = result_objects(str(there.path))
    assert result_files(local.path) == made
    assert [row.path for row in there.bad_rows()] == [f"s3://{BUCKET}/in/b.jsonl"] * 3
    inputs = [local.path.parent / name for name in ("a.jsonl.gz", "b.jsonl")]
    of_files = extract(inputs, tmp_path / "of-files", **settings, bad_rows="quarantine")
    assert of_files.plan.fields == there.plan.fields
    parts = {name: data for name, data in result_files(of_files.path).items() if name.endswith(".parquet")}
    assert parts == {name: data for name, data in made.items() if name.endswith(".parquet")}


def test_it_reads_as_a_folder_does(whole):
    local, there = whole
    for level, feature in (("token", "layer_02"), ("span", "layer_03"), ("sentence", "concat_02_03")):
        wanted = local.numpy(level, feature)
        assert np.array_equal(there.numpy(level, feature), wanted)
        assert np.array_equal(there.take(level, feature, [3, 0, 3]), wanted[[3, 0, 3]])
        assert np.array_equal(there.slice(level, feature, 2, 9), wanted[2:9])
        batches = [batch.vectors for batch in there.batches(level, feature, batch_size=7)]
        assert np.array_equal(np.concatenate(batches), wanted)
        assert there.polars(level).equals(local.polars(level))
    assert there.plan.plan_hash == local.plan.plan_hash
    scans = [store.scan("token").filter(pl.col("token_index") == 1).collect() for store in whole]
    assert scans[0].equals(scans[1])
    name = local.parts("sentence")[0].path
    part = pl.read_parquet(f"{there.path}/{name}", storage_options={"aws_allow_http": "true"})
    assert part.equals(pl.read_parquet(local.path / name))
    assert f"{there.path}: good\n" in good("verify", str(there.path), "--deep", "--documents", "2").out


def test_the_same_command_does_nothing_on_a_finished_store(whole, settings):
    before = result_objects(f"s3://{BUCKET}/out")
    inputs = [f"s3://{BUCKET}/in/a.jsonl.gz", f"s3://{BUCKET}/in/b.jsonl"]
    words = ["--model", settings["model"], "--level", settings["levels"], "--spans", settings["spans"]]
    words += ["--layers=-1,-2", "--shard-bytes", "25000"]
    result = good("extract", *inputs, "-o", f"s3://{BUCKET}/out", "--bad-rows", "quarantine", *words)
    assert "already complete" in result.out
    assert result_objects(f"s3://{BUCKET}/out") == before


def test_an_index_in_a_folder_finds_its_store(whole, tmp_path):
    build_index(whole[1], tmp_path / "index", level="sentence", feature="layer_03")
    with open_index(tmp_path / "index") as index:
        assert index.store.path == whole[1].path
    with pytest.raises(StorageError, match="an index must be in a local folder"):
        build_index(whole[1], f"s3://{BUCKET}/index", level="sentence", feature="layer_03")


def test_standard_input_parquet_and_a_frame(root, settings, tmp_path):
    pl.DataFrame({"text": ["one two", "three"]}).write_parquet(tmp_path / "c.parquet")
    parquet = upload(tmp_path / "c.parquet", root + ".parquet")
    words = ["--model", settings["model"], "--level", "sentence", "--layers=-1"]
    good("extract", parquet, "-o", f"{root}/parquet", *words)
    good("extract", "-", "-o", f"{root}/stdin", *words, stdin=b"one two\nthree\n")
    extract(
        pl.read_parquet(tmp_path / "c.parquet"), f"{root}/frame", **(settings | {"levels": "sentence", "spans": None})
    )
    first, *others = [open_store(f"{root}/{name}").numpy("sentence", -1) for name in ("parquet", "stdin", "frame")]
    assert first.shape == (2, 32)
    assert all(np.array_equal(first, vectors) for vectors in others)


def test_a_store_that_was_replaced_is_not_read_in_place_of_the_one_that_was_opened(root, settings, tmp_path):
    (tmp_path / "a.txt").write_text("one two\nthree\n")
    given = settings | {"inputs": tmp_path / "a.txt", "output": root}
    held = extract(**given)
    assert extract(**given, pooling="max", overwrite=True).version == 1
    with pytest.raises(StoreError, match="replaced or compacted"):
        held.numpy("sentence", -1)


@pytest.mark.ray
def test_actors_write_to_an_object_store(root, tmp_path, tiny_folder):
    from tests.support.ray_runs import cluster

    settings = three_shards(tmp_path, tiny_folder)
    settings |= {"inputs": str(write_corpus(tmp_path / "c.jsonl", 40, bad_every=9)), "bad_rows": "quarantine"}
    local = extract(output=tmp_path / "local", **settings)
    with cluster(tmp_path) as ray:
        command = [sys.executable, "-m", "bertfeat", "extract", *flags_of(settings), f"-o{root}", "--runner=ray"]
        done = ray.start([*command, f"--ray-address={ray.address}", "--workers=2"])
        _, errors = done.communicate(timeout=240)
    assert done.returncode == 0, errors
    assert result_objects(root) == result_files(local.path)
    assert verify(root).is_good
    assert not [name for name in objects(root) if "/tmp/" in name]
