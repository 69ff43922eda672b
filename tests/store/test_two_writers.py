"""Writers that meet: of the same plan with other bytes, beside one that removes files, and shares of a run."""

from __future__ import annotations

import pytest

from bertfeat.errors import StoreError, UserError
from bertfeat.store.verification import mark_for_redoing, verify
from bertfeat.store.writer import open_for_writing
from tests.support.store_fakes import make_plan, make_result, write_store

PLAN = make_plan()
pytestmark = pytest.mark.usefixtures("no_fsync")


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
