"""Damage to a store's files: verify reports it, and the next run repairs it."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from bertfeat.choices import Level
from bertfeat.errors import StoreError, UserError
from bertfeat.records import Plan
from bertfeat.store import codec, mark_for_redoing, open_for_writing, open_store, verify
from tests.support.runner_fakes import Heard
from tests.support.store_fakes import contents, make_plan, make_result, write_store

PLAN = make_plan(levels=(Level.TOKEN, Level.WORD))
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
    assert report.bad_shards == ()
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
        shard = int(name[-13:-8])
        assert [(p.shard, p.part) for p in report.problems] == [(shard, name)]
        if keeps_time:
            assert mark_for_redoing(root, report) == (shard,)
            assert open_store(root).n_rows(Level.TOKEN) == 12
        assert rerun(root) == [shard]
        assert contents(root) == whole
    assert verify(root).is_good


def test_a_rerun_that_rechecks_finds_what_kept_its_time(root):
    whole = contents(root)
    name = "word/part-00002.parquet"
    overwrite_keeping_time(root / name, whole[name][:-1] + b"x")
    assert rerun(root) == []
    assert rerun(root, recheck=True) == [2]
    assert contents(root) == whole


def test_an_untouched_store_is_not_read_again_and_a_copied_one_once(root, tmp_path, monkeypatch):
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    digested = []
    real = __import__("bertfeat.durable.files", fromlist=["digest_of"]).digest_of
    monkeypatch.setattr("bertfeat.durable.files.digest_of", lambda path: digested.append(path.name) or real(path))
    assert rerun(root) == []
    assert digested == []
    for expected in (9, 0):
        digested.clear()
        assert rerun(tmp_path / "copy") == []
        assert len(digested) == expected


def test_missing_swapped_extra_and_odd_files_are_named(root):
    whole = contents(root)
    a, b = root / "token/part-00000.parquet", root / "token/part-00001.parquet"
    a.rename(root / "x")
    b.rename(a)
    (root / "x").rename(b)
    assert [p.part for p in verify(root).problems] == ["token/part-00000.parquet", "token/part-00001.parquet"]
    assert rerun(root) == [0, 1]
    a.unlink()
    assert [str(p) for p in verify(root).problems] == ["token/part-00000.parquet: missing"]
    assert rerun(root) == [0]
    b.unlink()
    b.mkdir()
    assert [str(p) for p in verify(root).problems] == ["token/part-00001.parquet: not a file (a folder)"]
    b.rmdir()
    assert rerun(root) == [1]
    shutil.copy(a, root / "token/part-00003.parquet")
    assert [str(p) for p in verify(root).problems] == ["token/part-00003.parquet: belongs to no shard of the plan"]
    assert rerun(root) == []
    (root / "_bertfeat/quarantine/00001.jsonl").write_bytes(b"{}\n")
    assert [p.part for p in verify(root).problems] == ["_bertfeat/quarantine/00001.jsonl"]
    assert verify(root).bad_shards == (1,)
    assert rerun(root) == [1]
    assert contents(root) == whole
    assert verify(root).is_good


def test_parts_of_another_store_are_named(root, tmp_path):
    write_store(tmp_path / "other", make_plan(levels=(Level.TOKEN, Level.WORD), layers="all"), n_bad=1)
    for name in ("token/part-00001.parquet", "_bertfeat/receipts/00001.json"):
        shutil.copyfile(tmp_path / "other" / name, root / name)
    problems = verify(root).problems
    assert [p.part for p in problems] == ["_bertfeat/receipts/00001.json"]
    assert "made with other settings" in problems[0].reason
    assert rerun(root) == [1]


def test_a_receipt_that_was_edited_with_its_part_is_named(root):
    """The digests agree, so only the part's own metadata show the change."""
    path = root / "_bertfeat/receipts/00001.json"
    content = codec.unseal(path.read_bytes())
    shutil.copyfile(root / "token/part-00000.parquet", root / "token/part-00001.parquet")
    other = codec.unseal((root / "_bertfeat/receipts/00000.json").read_bytes())["receipt"]["parts"][0]
    content["receipt"]["parts"][0] |= {"digest": other["digest"], "n_bytes": other["n_bytes"]}
    path.write_bytes(codec.seal(content))
    reasons = [p.reason for p in verify(root).problems if p.part == "token/part-00001.parquet"]
    assert reasons == [
        "5 rows, its receipt says 4",
        "its vectors lie elsewhere than its receipt says",
        "its metadata does not say shard 1",
        "its metadata does not say n_rows 4",
    ]
    assert "manifest.json" in [p.part for p in verify(root).problems]


def test_an_edited_manifest_is_noticed_and_recreated(root):
    whole = contents(root)
    path = root / "manifest.json"
    edited = codec.unseal(path.read_bytes())
    edited["totals"]["n_bad_rows"] = 0
    for data in (codec.seal(edited), path.read_bytes()[:-2], path.read_bytes().replace(b"tiny", b"huge"), b"\xff", b""):
        path.write_bytes(data)
        report = verify(root)
        assert [(p.shard, p.part) for p in report.problems] == [(None, "manifest.json")]
        assert rerun(root) == []
        assert contents(root) == whole
    path.unlink()
    assert [str(p) for p in verify(root).problems] == ["manifest.json: missing: the run has not finished"]


def test_an_unfinished_store_names_the_shards_to_do(tmp_path):
    with open_for_writing(tmp_path / "s", PLAN) as writer:
        writer.commit(PLAN.shards[1], make_result(PLAN, PLAN.shards[1]))
    report = verify(tmp_path / "s")
    assert report.bad_shards == (0, 2)
    assert report.problems[-1].part == "manifest.json"


@pytest.mark.parametrize("name", ["_bertfeat/plan.json", "manifest.json", "_bertfeat/receipts/00001.json"])
def test_garbage_is_reported_and_a_rerun_repairs_it(root, name):
    whole = contents(root)
    data = (root / name).read_bytes()
    rng = random.Random(3)
    damaged = [b"", b"\x00" * 50, b"[1]", b"{}", b'"x"', b"nan", b"[" * 100_000, data[:-5], rng.randbytes(200)]
    damaged += [codec.seal(content) for content in ({}, {"format_version": 1}, {"plan": 7, "format_version": 1})]
    for garbage in damaged:
        (root / name).write_bytes(garbage)
        report = verify(root)
        assert name in [p.part for p in report.problems]
        assert all("\n" not in str(p) for p in report.problems)
        assert rerun(root) == []
        assert contents(root) == whole
        assert verify(root).is_good


def test_flipped_bits_of_json_files_are_noticed(root):
    whole = contents(root)
    rng = random.Random(11)
    for name in ("_bertfeat/plan.json", "manifest.json", "_bertfeat/receipts/00001.json"):
        good = (root / name).read_bytes()
        for _ in range(20):
            data = bytearray(good)
            place = rng.choice([n for n, byte in enumerate(data) if byte not in b" \n"])
            data[place] ^= 1 << rng.randrange(7)
            (root / name).write_bytes(data)
            assert not verify(root).is_good
            (root / name).write_bytes(good)
    assert contents(root) == whole
    assert verify(root).is_good


def test_without_a_plan_the_parts_are_checked_against_the_manifest(root):
    (root / "_bertfeat/plan.json").unlink()
    (root / "token/part-00000.parquet").write_bytes(b"x")
    assert [p.part for p in verify(root).problems] == ["_bertfeat/plan.json", "token/part-00000.parquet"]


def test_other_folders_and_newer_stores_are_refused(root, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="not a bertfeat store"):
            verify(path)
    content = json.loads((root / "_bertfeat/plan.json").read_bytes())
    content.pop("check")
    (root / "_bertfeat/plan.json").write_bytes(codec.seal(content | {"format_version": 3}))
    with pytest.raises(StoreError, match="upgrade bertfeat"):
        verify(root)


def test_a_mark_holds_until_the_next_run_and_no_longer(root):
    whole = contents(root)
    name = "token/part-00001.parquet"
    overwrite_keeping_time(root / name, whole[name][:-1] + b"x")
    assert mark_for_redoing(root, verify(root)) == (1,)
    # The part is repaired by hand, and its shard is still repeated.
    overwrite_keeping_time(root / name, whole[name])
    assert rerun(root) == [1]
    assert contents(root) == whole
    assert rerun(root) == []


def test_a_damaged_file_of_marks_makes_a_run_read_every_part(root):
    whole = contents(root)
    name = "token/part-00001.parquet"
    for garbage in (b"", b"{}", codec.seal({"shards": "x"}), codec.seal({"shards": [[]]})):
        overwrite_keeping_time(root / name, whole[name][:-1] + b"x")
        (root / "_bertfeat/damaged.json").write_bytes(garbage)
        assert rerun(root) == [1]
        assert contents(root) == whole


def test_only_shards_with_a_receipt_or_in_the_manifest_need_a_mark(root):
    (root / "manifest.json").unlink()
    (root / "_bertfeat/receipts/00001.json").write_bytes(b"x")
    (root / "_bertfeat/receipts/00002.json").unlink()
    before = contents(root)
    assert mark_for_redoing(root, verify(root)) == (1, 2)
    assert contents(root) == before


def test_overwriting_a_store_clears_its_marks(root):
    (root / "token/part-00000.parquet").write_bytes(b"x")
    mark_for_redoing(root, verify(root))
    assert rerun(root, overwrite=True) == [0, 1, 2]
    assert not (root / "_bertfeat/damaged.json").exists()


def test_marking_is_refused_while_another_run_writes(root):
    (root / "token/part-00000.parquet").write_bytes(b"x")
    report = verify(root)
    with open_for_writing(root, PLAN), pytest.raises(StoreError, match="is writing this store"):
        mark_for_redoing(root, report)


def test_one_shard_of_a_store_can_be_read_alone(root):
    store = open_store(root)
    assert store.shard(1).numpy(Level.TOKEN, "layer_06").tolist() == store.numpy(Level.TOKEN, "layer_06")[5:9].tolist()
    with pytest.raises(UserError, match="no shard 3"):
        store.shard(3)
