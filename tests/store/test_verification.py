"""Damage to a store's files: verify reports it, and the next run repairs it."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bertfeat.choices import Level
from bertfeat.durable.records import seal
from bertfeat.errors import StoreError
from bertfeat.records import Plan
from bertfeat.store.reader import open_store
from bertfeat.store.verification import mark_for_redoing, verify
from bertfeat.store.writer import open_for_writing
from tests.support.runner_fakes import Heard
from tests.support.store_fakes import contents, make_plan, make_result, part_name, rewrite_manifest, write_store

PLAN = make_plan(levels=(Level.TOKEN, Level.WORD))
MANIFEST, WORK = "manifests/00000.json", f"_bertfeat/work/{PLAN.plan_hash}"
pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def root(tmp_path):
    write_store(tmp_path / "s", PLAN, n_bad=1)
    return tmp_path / "s"


def rerun(root: Path, plan: Plan = PLAN, **opening: bool) -> list[int]:
    """Run the same extraction again; return the shards that it did."""
    with open_for_writing(root, plan, **opening) as writer:
        todo = writer.pending()
        for shard in todo:
            writer.commit(shard, make_result(plan, shard, n_bad=1))
        writer.complete()
    return [shard.index for shard in todo]


def overwrite_keeping_time(path: Path, data: bytes) -> None:
    """Change a file without its modification time, as bit rot does."""
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_good_store_has_no_problem(root):
    heard = Heard()
    report = verify(root, progress=heard)
    assert report.is_good
    assert (report.n_parts, report.n_rows) == (6, 24)
    assert report.n_bytes == sum(part.n_bytes for level in PLAN.schemas for part in open_store(root).parts(level))
    assert heard.said == [f"checking shards {n}/3" for n in (1, 2, 3)]
    before = contents(root)
    assert mark_for_redoing(root, report) == ()
    assert contents(root) == before


@pytest.mark.parametrize(
    ("kind", "n_tries"),
    [
        ("flip", 30),
        ("truncate", 20),
        pytest.param("flip", 150, marks=pytest.mark.long),
        pytest.param("truncate", 100, marks=pytest.mark.long),
    ],
)
# With another time of change, the next run reads a part again; without, `verify` finds it and marks it.
@pytest.mark.promise("verify")
@pytest.mark.parametrize("keeps_time", [False, True])
def test_every_damaged_part_is_named_and_its_shard_alone_done_again(root, kind, n_tries, keeps_time):
    whole = contents(root)
    parts = [name for name in whole if name.endswith(".parquet")]
    rng = random.Random(7)
    for _ in range(n_tries):
        name = rng.choice(parts)
        damaged = bytearray(whole[name])
        place = rng.randrange(len(damaged))
        if kind == "flip":
            damaged[place] ^= 1 << rng.randrange(8)
        else:
            del damaged[place:]
        (overwrite_keeping_time if keeps_time else Path.write_bytes)(root / name, bytes(damaged))
        report = verify(root)
        shard = int(name[-22:-17])
        assert [(p.shard, p.part) for p in report.problems] == [(shard, name)]
        if keeps_time:
            assert mark_for_redoing(root, report) == (shard,)
            assert open_store(root).n_rows(Level.TOKEN) == 12
        assert rerun(root) == [shard]
        assert contents(root) == whole
    assert verify(root).is_good


@pytest.mark.promise("verify")
def test_missing_swapped_extra_and_odd_files_are_named(root):
    whole = contents(root)
    a, b = root / part_name(PLAN, 0), root / part_name(PLAN, 1)
    a.rename(root / "x")
    b.rename(a)
    (root / "x").rename(b)
    assert [p.part for p in verify(root).problems] == [part_name(PLAN, 0), part_name(PLAN, 1)]
    assert rerun(root) == [0, 1]
    a.unlink()
    assert [str(p) for p in verify(root).problems] == [f"{part_name(PLAN, 0)}: missing"]
    assert rerun(root) == [0]
    shutil.copy(a, root / part_name(PLAN, 3))
    (problem,) = verify(root).problems
    assert str(problem) == f"{part_name(PLAN, 3)}: belongs to no shard of the newest version"
    assert rerun(root) == []
    (root / WORK / "00001.bad.jsonl").write_bytes(b"{}\n")
    assert [p.part for p in verify(root).problems] == [f"{WORK}/00001.bad.jsonl"]
    assert verify(root).bad_shards == (1,)
    assert rerun(root) == [1]
    assert contents(root) == whole
    assert verify(root).is_good


def test_a_manifest_that_was_edited_with_its_part_is_named(root):
    """The digests agree, so only the receipt shows the change."""
    shutil.copyfile(root / part_name(PLAN, 0), root / part_name(PLAN, 1))

    def change(manifest):
        (first, *_), second, _ = (shard.parts for shard in manifest.shards)
        swapped = replace(second[0], digest=first.digest, n_bytes=first.n_bytes)
        return manifest.with_shards(
            [manifest.shards[0], replace(manifest.shards[1], parts=(swapped, second[1])), manifest.shards[2]]
        )

    rewrite_manifest(root, change)
    assert [str(p) for p in verify(root).problems] == [f"{WORK}/00001.json: does not match the manifest"]


def test_a_damaged_manifest_is_noticed_and_made_again(root):
    whole = contents(root)
    path = root / MANIFEST
    for data in (path.read_bytes().replace(b"tiny", b"huge"), b"\xff", b"", b"[" * 100_000):
        path.write_bytes(data)
        assert [(p.shard, p.part) for p in verify(root).problems] == [(None, MANIFEST)]
        with pytest.raises(StoreError, match="damaged or edited"):
            open_store(root)
        assert rerun(root) == []
        assert contents(root) == whole
    path.unlink()
    assert [str(p) for p in verify(root).problems] == ["manifests: no manifest: the run has not finished"]


def test_an_unfinished_store_names_the_shards_to_do(tmp_path):
    with open_for_writing(tmp_path / "s", PLAN) as writer:
        writer.commit(PLAN.shards[1], make_result(PLAN, PLAN.shards[1]))
    report = verify(tmp_path / "s")
    assert report.bad_shards == (0, 2)
    assert report.problems[0].part == "manifests"


def test_other_folders_and_newer_stores_are_refused(root, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="not a bertfeat store"):
            verify(path)
    content = json.loads((root / MANIFEST).read_bytes())
    content.pop("check")
    (root / MANIFEST).write_bytes(seal(content | {"format_version": 3}))
    for read in (verify, open_store):
        with pytest.raises(StoreError, match=r"00000\.json: format_version 3, .* upgrade bertfeat"):
            read(root)


def test_repeated_shards_with_other_bytes_make_a_version(root):
    """On another machine, the last bits of vectors may differ."""
    (root / part_name(PLAN, 1)).unlink()
    with open_for_writing(root, PLAN) as writer:
        (shard,) = writer.pending()
        result = make_result(PLAN, shard, n_bad=1)
        result.tables[Level.TOKEN].vectors["layer_03"][:] += 1
        writer.commit(shard, result)
        writer.complete()
    store = open_store(root)
    assert (store.version, store.manifest.first_version) == (1, 1)
    assert store.numpy("token", "layer_03")[5, 0] == 306
    assert not (root / MANIFEST).exists()
    assert verify(root).is_good
    assert rerun(root) == []
