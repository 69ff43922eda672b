"""Writing and repair in an object store: stops, damage, second writers, and a server that knows no conditions."""

from __future__ import annotations

import contextlib

import pytest

from bertfeat import open_store, verify
from bertfeat.choices import Level
from bertfeat.durable import steps
from bertfeat.errors import StorageError, StoreError
from bertfeat.store.writer import open_for_writing
from tests.support import drill
from tests.support.command_line import bertfeat
from tests.support.object_stores import bucket, objects, point_at, proxy, result_objects, without_conditions
from tests.support.store_fakes import make_plan, make_result, part_name, write_store

pytestmark = pytest.mark.usefixtures("s3")

PLAN = make_plan((3, 2), combine="none")
WORK = f"_bertfeat/work/{PLAN.plan_hash}"


def rerun(url, plan=PLAN, **opening):
    """Run the same extraction again; return the shards that it did."""
    with open_for_writing(url, plan, **opening) as writer:
        todo = writer.pending()
        for shard in todo:
            writer.commit(shard, make_result(plan, shard, n_bad=1))
        writer.complete()
    return [shard.index for shard in todo]


def test_a_run_interrupted_at_a_step_is_finished_by_the_next(root, monkeypatch):
    passed: list[str] = []
    plan = make_plan((3,), combine="none")
    with monkeypatch.context() as patch:
        patch.setattr(steps, "hook", passed.append)
        rerun(f"{root}/whole", plan)
    made = result_objects(f"{root}/whole")
    assert {"plan.written", "part.durable", "receipt.written", "manifest.durable"} <= set(passed) <= drill.STEPS

    def stop_at(point):
        left = [point]

        def hook(name):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

        return hook

    for point in range(1, len(passed) + 1, 2):
        url = f"{root}/{point}"
        with monkeypatch.context() as patch:
            patch.setattr(steps, "hook", stop_at(point))
            with pytest.raises(KeyboardInterrupt):
                rerun(url, plan)
        assert result_objects(url).items() <= made.items()
        rerun(url, plan)
        assert result_objects(url) == made, passed[point - 1]


def test_damage_is_reported_and_only_its_shard_done_again(root):
    write_store(root, PLAN, n_bad=1)
    made = result_objects(root)
    for name, shard in ((part_name(PLAN, 1), 1), (f"{WORK}/00000.bad.jsonl", 0)):
        bucket().pipe_file(f"{root}/{name}", made[name][:-1] + b"x")
        result = bertfeat("verify", root)
        assert (result.code, result.out.startswith(name)) == (1, True)
        assert rerun(root) == [shard]
    bucket().rm_file(f"{root}/{part_name(PLAN, 0)}")
    bucket().pipe_file(f"{root}/{part_name(PLAN, 9)}", b"stray")
    assert [str(p) for p in verify(root).problems] == [
        f"{part_name(PLAN, 0)}: missing",
        f"{part_name(PLAN, 9)}: belongs to no shard of the newest version",
    ]
    assert rerun(root) == [0]
    assert result_objects(root) == made
    assert verify(root).is_good


def test_overwrite_replaces_a_store_and_nothing_else(root):
    write_store(root, make_plan((2,), levels=(Level.WORD,), layers="all"))
    bucket().pipe_file(f"{root}/word/notes.txt", b"mine")
    with pytest.raises(StoreError, match=r"holds files that are not part of a store \(word/notes.txt\)"):
        rerun(root, overwrite=True)
    bucket().rm_file(f"{root}/word/notes.txt")
    assert rerun(root, overwrite=True) == [0, 1]
    write_store(f"{root}-fresh", PLAN, n_bad=1)
    made, fresh = result_objects(root), result_objects(f"{root}-fresh")
    assert (made.pop("manifests/00001.json"), fresh.pop("manifests/00000.json")) is not None
    assert made == fresh
    assert open_store(root).manifest.shards == open_store(f"{root}-fresh").manifest.shards


@pytest.mark.promise("writers")
def test_two_runs_of_one_plan_make_the_same_store(root):
    with open_for_writing(root, PLAN) as one, open_for_writing(root, PLAN) as other:
        for writer, shards in ((one, PLAN.shards), (other, PLAN.shards[::-1])):
            for shard in shards:
                writer.commit(shard, make_result(PLAN, shard, n_bad=1))
        one.complete()
        other.complete()
    assert open_store(root).version == 0
    write_store(f"{root}-alone", PLAN, n_bad=1)
    assert result_objects(root) == result_objects(f"{root}-alone")


@pytest.mark.promise("writers")
@pytest.mark.parametrize("grows", [False, True])
def test_of_two_plans_one_makes_the_version_and_the_other_says_so(root, grows):
    """Nothing is locked in an object store."""
    if grows:
        write_store(root, PLAN, n_bad=1)
    after = {"after": PLAN} if grows else {}
    plans = [make_plan((2,), combine="none", digest=name, **after) for name in ("cd", "ef")]
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(open_for_writing(root, plans[0]))
        # It looked at the place before the first one wrote its plan.
        plan_file = f"{root}/_bertfeat/work/{plans[0].plan_hash}/plan.json"
        data = bucket().cat_file(plan_file)
        bucket().rm_file(plan_file)
        other = stack.enter_context(open_for_writing(root, plans[1]))
        bucket().pipe_file(plan_file, data)
        for writer in (one, other):
            for shard in writer.pending():
                writer.commit(shard, make_result(writer.plan, shard, n_bad=1))
        one.complete()
        with pytest.raises(StoreError, match=r"another run has made version \d of this store meanwhile; .* again"):
            other.complete()
    store = open_store(root)
    assert (store.version, store.plan) == (int(grows), plans[0])
    assert store.n_rows("token") == (7 if grows else 2)
    assert verify(root).is_good
    assert not [name for name in objects(root) if plans[1].plan_hash[:8] in name]


def test_a_second_append_waits_for_the_first(root):
    write_store(root, PLAN, n_bad=1)
    plans = [make_plan((2,), combine="none", after=PLAN, digest=name) for name in ("cd", "ef")]
    with open_for_writing(root, plans[0]):
        with pytest.raises(StoreError, match=r"an append of corpus.txt has not finished; run that command again"):
            open_for_writing(root, plans[1])
        rerun(root, plans[1], overwrite=True)
    assert open_store(root).plan == plans[1]


def test_a_server_that_ignores_conditions_is_refused(root, s3, monkeypatch):
    with proxy(s3, without_conditions) as url:
        point_at(monkeypatch, url)
        with pytest.raises(StorageError, match="does not refuse to create an object that is there"):
            open_for_writing(root, PLAN)
    point_at(monkeypatch, s3)
    assert objects(root) == {}
