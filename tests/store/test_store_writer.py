"""Writer of a store: opening, committing, completing, the folders that it refuses, and writers that meet."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertfeat.choices import Level
from bertfeat.errors import FeatureError, PlanMismatch, RunError, StoreError, UserError
from bertfeat.records import BadRow
from bertfeat.store.folder import folder_at
from bertfeat.store.reader import open_store
from bertfeat.store.verification import mark_for_redoing, verify
from bertfeat.store.writer import open_for_writing
from tests.support.store_fakes import (
    contents,
    make_plan,
    make_result,
    part_name,
    receipt_files,
    write_store,
)


def tree(root: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def test_bad_rows_keep_their_bytes(tmp_path):
    plan = make_plan((2,))
    rows = [BadRow(0, "a\udc80.txt", 1, "no utf-8", b"\xff\x00\n"), BadRow(1, "b", 7, "not JSON\u2028", None)]
    with open_for_writing(tmp_path / "s", plan) as writer:
        writer.commit(plan.shards[0], replace(make_result(plan, plan.shards[0]), bad_rows=rows))
        writer.complete()
    store = open_store(tmp_path / "s")
    assert store.bad_rows() == (replace(rows[0], path="a\\udc80.txt"), rows[1])
    kept = tmp_path / "s" / store.manifest.shards[0].quarantine.path
    kept.write_bytes(kept.read_bytes().replace(b'"row":7', b'"row":8'))
    with pytest.raises(StoreError, match=r"00000\.bad\.jsonl: its bytes are not those that were written; run bertfeat"):
        store.bad_rows()


def test_an_interrupted_run_resumes(tmp_path):
    plan = make_plan()
    write_store(tmp_path / "whole", plan)
    with open_for_writing(tmp_path / "s", plan) as writer:
        writer.commit(plan.shards[1], make_result(plan, plan.shards[1]))
        assert [shard.index for shard in writer.pending()] == [0, 2]
        with pytest.raises(RunError, match=r"2 shards are not done \(00000, 00002\); run the same command again"):
            writer.complete()
    write_store(tmp_path / "s", plan)
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")
    before = tree(tmp_path / "s")
    with open_for_writing(tmp_path / "s", plan) as writer:
        assert writer.is_complete
        writer.complete()
    assert tree(tmp_path / "s") == before


def test_shards_are_committed_at_the_same_time_and_twice(tmp_path):
    plan = make_plan((3, 2, 2), levels=(Level.TOKEN, Level.SENTENCE), combine="none")
    write_store(tmp_path / "whole", plan, n_bad=1)
    with open_for_writing(tmp_path / "s", plan) as writer, ThreadPoolExecutor(4) as pool:
        # As after a worker that was replaced too early.
        shards = [*plan.shards, plan.shards[2]]
        list(pool.map(lambda shard: writer.commit(shard, make_result(plan, shard, n_bad=1)), shards))
        writer.complete()
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


@pytest.mark.promise("kill")
def test_whole_shards_stay_as_they_are_and_torn_ones_are_repeated(tmp_path):
    plan = make_plan()
    write_store(tmp_path / "s", plan)
    before = contents(tmp_path / "s")
    parts = [tmp_path / "s" / part_name(plan, n) for n in range(3)]
    inodes = [part.stat().st_ino for part in parts]
    (tmp_path / "s/manifests/00000.json").unlink()
    for receipt in receipt_files(tmp_path / "s")[:1]:
        receipt.unlink()
    parts[1].write_bytes(b"torn")
    write_store(tmp_path / "s", plan)
    assert contents(tmp_path / "s") == before
    assert [part.stat().st_ino == inode for part, inode in zip(parts, inodes, strict=True)] == [False, False, True]


def test_a_file_system_without_links_uses_renames(tmp_path, monkeypatch):
    plan = make_plan()
    write_store(tmp_path / "links", plan)

    def refuse(*_args, **_kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_store(tmp_path / "s", plan)
    assert contents(tmp_path / "s") == contents(tmp_path / "links")


def test_another_plan_is_refused_with_every_differing_field_before_anything_is_written(tmp_path):
    write_store(tmp_path / "s", make_plan())
    before = tree(tmp_path / "s")
    with pytest.raises(PlanMismatch) as caught:
        open_for_writing(tmp_path / "s", make_plan(layers="all", digest="cd", stride=7))
    for said in ("corpus.txt", "`layers` was 'last4', now 'all'", "`stride` was not set, now 7"):
        assert said in str(caught.value)
    assert caught.value.fields["inputs"] == (["ab"], ["cd"])
    assert tree(tmp_path / "s") == before


def test_a_folder_of_other_files_is_refused_and_kept(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    for n in range(7):
        (folder / f"notes{n}.txt").write_text("mine")
    before = tree(folder)
    for overwrite in (False, True):
        with pytest.raises(StoreError, match=r"not part of a store \(notes0.txt, .*, \.\.\.\); choose another"):
            open_for_writing(folder, make_plan(), overwrite=overwrite)
    with pytest.raises(StoreError, match=r"notes0.txt: not a folder \(a file\); choose another `output`"):
        open_for_writing(folder / "notes0.txt", make_plan())
    assert tree(folder) == before


@pytest.mark.promise("overwrite")
def test_overwrite_replaces_a_store_and_nothing_else(tmp_path):
    write_store(tmp_path / "s", make_plan(levels=(Level.TOKEN, Level.WORD), input="old"), n_bad=1)
    held = open_store(tmp_path / "s")
    plan = make_plan((2, 2), levels=(Level.WORD,))
    (tmp_path / "s" / "word" / "notes.txt").write_text("mine")
    before = tree(tmp_path / "s")
    with pytest.raises(StoreError, match=r"holds files that are not part of a store \(word/notes.txt\)"):
        open_for_writing(tmp_path / "s", plan, overwrite=True)
    assert tree(tmp_path / "s") == before
    (tmp_path / "s" / "word" / "notes.txt").unlink()
    # What a killed process had not finished stops no overwriting.
    (tmp_path / "s/_bertfeat/tmp/00000.word.1-ab.tmp").write_bytes(b"left")
    with open_for_writing(tmp_path / "s", plan, overwrite=True) as writer:
        for shard in writer.pending():
            writer.commit(shard, make_result(plan, shard))
        # Until the new version is whole, readers see the old one.
        assert open_store(tmp_path / "s").manifest == held.manifest
        assert held.numpy("token", "layer_03").shape == (12, 4)
        writer.complete()
    write_store(tmp_path / "fresh", plan)
    made, fresh = contents(tmp_path / "s"), contents(tmp_path / "fresh")
    assert [made.pop("manifests/00001.json") != fresh.pop("manifests/00000.json"), made == fresh] == [True, True]
    store = open_store(tmp_path / "s")
    assert (store.version, store.n_rows("word"), store.manifest.first_version) == (1, 4, 1)
    assert not (tmp_path / "s" / "token").exists()
    with pytest.raises(StoreError, match="replaced or compacted"):
        held.numpy("token", "layer_03")


def test_a_user_error_before_the_first_commit_leaves_nothing_behind(tmp_path):
    out, plan = tmp_path / "a" / "b", make_plan()
    with pytest.raises(UserError), open_for_writing(out, plan):
        raise UserError("no such model")
    assert tree(tmp_path) == {}
    with pytest.raises(UserError), open_for_writing(out, plan) as writer:  # noqa: PT012
        writer.commit(plan.shards[0], make_result(plan, plan.shards[0]))
        raise UserError("row 7 is bad")
    assert len(open_for_writing(out, plan).receipts()) == 1


def test_lost_and_damaged_plans_are_made_again_by_the_same_plan_alone(tmp_path):
    plan = make_plan()
    for n, damage in enumerate((lambda path: path.unlink(), lambda path: path.write_bytes(b'{"format_version": 1}'))):
        root = tmp_path / str(n)
        write_store(root, plan)
        before = contents(root)
        damage(root / f"_bertfeat/work/{plan.plan_hash}/plan.json")
        with pytest.raises(StoreError, match=r"missing, so nothing shows|damaged or edited"):
            open_for_writing(root, make_plan(layers="all"))
        with open_for_writing(root, plan) as writer:
            assert writer.is_complete
        assert contents(root) == before


def test_a_lost_receipt_is_recreated_from_the_manifest(tmp_path):
    plan = make_plan()
    write_store(tmp_path / "s", plan, n_bad=1)
    before = contents(tmp_path / "s")
    for path, garbage in zip(receipt_files(tmp_path / "s"), [None, b"\x00\xff", b"{}"], strict=True):
        path.unlink() if garbage is None else path.write_bytes(garbage)
    with open_for_writing(tmp_path / "s", plan) as writer:
        assert writer.is_complete
        assert [receipt.counts["n_documents"] for receipt in writer.receipts()] == [4, 3, 2]
    assert contents(tmp_path / "s") == before
    assert verify(tmp_path / "s").is_good


def test_a_feature_that_is_not_finite_is_named_and_nothing_is_written(tmp_path):
    plan = make_plan()
    result = make_result(plan, plan.shards[1])
    result.tables[Level.TOKEN].vectors["layer_05"][2, 3] = -np.inf
    with open_for_writing(tmp_path / "s", plan) as writer:
        before = tree(tmp_path / "s")
        with pytest.raises(FeatureError, match=r"document (np.int64\()?7\)?: layer_05 of token row 2 .* holds -inf"):
            writer.commit(plan.shards[1], result)
        assert tree(tmp_path / "s") == before


PLAN = make_plan()


def commit_all(writer, **result):
    for shard in PLAN.shards:
        writer.commit(shard, make_result(PLAN, shard, **result))


def test_a_run_that_loses_the_version_to_the_same_plan_removes_none_of_its_parts(tmp_path):
    root = tmp_path / "s"
    with open_for_writing(root, PLAN, shared=True) as late, open_for_writing(root, PLAN, shared=True) as early:
        commit_all(early)
        early.complete()
        # As on another processor.
        commit_all(late, nulls=True)
        with pytest.raises(StoreError, match=r"another run of the same plan has made version 0, with other bytes"):
            late.complete()
    report = verify(root)
    assert {problem.shard for problem in report.problems} == {0, 1, 2}
    mark_for_redoing(root, report)
    write_store(root, PLAN)
    assert verify(root).is_good


def test_a_share_that_fails_removes_nothing_of_the_others(tmp_path):
    root = tmp_path / "s"
    with open_for_writing(root, PLAN, shared=True) as other:
        with pytest.raises(UserError, match="no such model"), open_for_writing(root, PLAN, shared=True):
            raise UserError("no such model")
        commit_all(other)
        other.complete()
    assert verify(root).is_good


def test_a_refused_writer_leaves_the_lock_to_its_holder(tmp_path):
    root = tmp_path / "s"
    with open_for_writing(root, PLAN) as writer:
        with pytest.raises(StoreError, match="is writing this store"):
            open_for_writing(root, PLAN, shared=True)
        with pytest.raises(StoreError, match="is writing this store"):
            open_for_writing(root, PLAN)
        commit_all(writer)
        writer.complete()
    assert verify(root).is_good


def test_a_shard_that_another_share_commits_during_a_listing_keeps_its_receipt(tmp_path, monkeypatch):
    plan = make_plan((2, 3))
    with open_for_writing(tmp_path, plan, shared=True) as first:
        first.commit(plan.shards[0], make_result(plan, plan.shards[0]))
        folder, whole, n_begun = type(folder_at(tmp_path)), type(folder_at(tmp_path)).listing, iter(range(2))

        def listing(self, known=()):
            """List a folder; at first as if the files of parts had been listed before the shard was committed."""
            is_late = next(n_begun, None) is None
            return {name: info for name, info in whole(self, known).items() if is_late or not name.endswith(".parquet")}

        monkeypatch.setattr(folder, "listing", listing)
        with open_for_writing(tmp_path, plan, shared=True) as second:
            assert next(n_begun, None) is None
            assert second.pending() == plan.shards[1:]
