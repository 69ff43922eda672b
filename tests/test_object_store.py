"""Stores and corpora in an object store: what holds of a folder holds there, on a server that speaks S3."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import bertfeat, good
from drill import result_files, write_corpus
from object_stores import (
    BUCKET,
    bucket,
    objects,
    point_at,
    proxy,
    result_objects,
    s3_server,
    upload,
    without_conditions,
)
from store_fakes import make_plan, make_result, write_store

from bertfeat import build_index, extract, open_index, open_store, verify
from bertfeat.config import Level
from bertfeat.errors import PlanMismatch, RunError, StorageError, StoreError, UserError
from bertfeat.store import mark_for_redoing, objectlock, open_for_writing, steps
from bertfeat.store.receipts import read_quarantine

pytest.importorskip("s3fs")
pytest.importorskip("moto")
pytestmark = pytest.mark.usefixtures("one_thread", "s3")

PLAN = make_plan(levels=(Level.TOKEN, Level.SENTENCE))


@pytest.fixture(scope="module")
def server():
    with s3_server() as url:
        yield url


@pytest.fixture(scope="module")
def s3(server):
    with pytest.MonkeyPatch.context() as patch:
        point_at(patch, server)
        bucket().mkdir(BUCKET)
        yield server


@pytest.fixture
def root(request):
    """A place that no other test uses."""
    return f"s3://{BUCKET}/{request.node.name.replace('[', '-').replace(']', '')}/s"


@pytest.fixture(scope="module")
def settings(tiny_folder):
    return {"model": str(tiny_folder), "levels": ["token", "sentence"], "layers": "-1,-2", "shard_bytes": 25_000}


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory, s3):
    """The same corpus extracted from files to a folder, and from objects to an object store."""
    folder = tmp_path_factory.mktemp("whole")
    corpus = write_corpus(folder / "b.jsonl", 24, bad_every=7)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a first file"}\n' * 3))
    for path in (corpus, folder / "a.jsonl.gz"):
        upload(path, f"s3://{BUCKET}/in/{path.name}")
    given = settings | {"bad_rows": "quarantine"}
    local = extract(str(folder / "*.jsonl*"), folder / "out", **given)
    there = extract(f"s3://{BUCKET}/in/*.jsonl*", f"s3://{BUCKET}/out/", **given)
    return local, there


class TestWhatIsWritten:
    def test_the_bytes_are_those_of_a_folder(self, whole):
        local, there = whole
        assert str(there.path) == f"s3://{BUCKET}/out"
        assert len(there.manifest["shards"]) > 2
        assert there.manifest["totals"]["n_bad_rows"] == 4
        here, found = result_files(local.path), result_objects(str(there.path))
        plans = [json.loads(files.pop("_bertfeat/plan.json")) for files in (here, found)]
        assert [name for name in here if here[name] != found.get(name)] == [
            name for name in here if name.endswith(".jsonl")
        ]  # Where a bad row stands is named as the user named it.
        assert here.keys() == found.keys()
        assert plans[0]["plan"]["fields"] == plans[1]["plan"]["fields"]
        kept = [read_quarantine(store.path / "_bertfeat/quarantine/00000.jsonl") for store in whole]
        assert [(row.index, row.raw) for row in kept[0]] == [(row.index, row.raw) for row in kept[1]]
        assert kept[1][0].path == f"s3://{BUCKET}/in/b.jsonl"

    def test_it_reads_as_a_folder_does(self, whole):
        local, there = whole
        for level, feature in (("token", "layer_02"), ("sentence", "concat_02_03")):
            wanted = local.numpy(level, feature)
            assert np.array_equal(there.numpy(level, feature), wanted)
            assert np.array_equal(there.take(level, feature, [3, 0, 3]), wanted[[3, 0, 3]])
            assert np.array_equal(there.slice(level, feature, 2, 9), wanted[2:9])
            assert np.array_equal(
                np.concatenate([b.vectors for b in there.batches(level, feature, batch_size=7)]), wanted
            )
            assert there.polars(level).equals(local.polars(level))
            assert there.arrow(level).equals(local.arrow(level))
        assert there.receipts()[0].counts == local.receipts()[0].counts
        assert there.plan.plan_hash == local.plan.plan_hash

    def test_polars_reads_it_by_itself(self, whole):
        local, there = whole
        lazy = there.scan("token").filter(pl.col("token_index") == 1).select("doc_id", "layer_03")
        assert isinstance(lazy, pl.LazyFrame)
        assert lazy.collect().equals(
            local.scan("token").filter(pl.col("token_index") == 1).select("doc_id", "layer_03").collect()
        )
        part = pl.read_parquet(f"{there.path}/sentence/part-00000.parquet", storage_options={"aws_allow_http": "true"})
        assert part.equals(pl.read_parquet(local.path / "sentence/part-00000.parquet"))

    def test_it_verifies_and_says_what_is_in_it(self, whole):
        url = str(whole[1].path)
        report = verify(url)
        assert report.is_good
        assert report.n_parts == 2 * len(whole[1].manifest["shards"])
        assert f"{url}: good; " in good("verify", url).out
        assert good("verify", url, "--deep", "--documents", "2").code == 0
        summary = good("inspect", url, "--json").json
        assert (summary["store"], summary["complete"], summary["n_documents"]) == (url, True, 23)

    def test_the_same_command_does_nothing_on_a_finished_store(self, whole, settings):
        before = result_objects(f"s3://{BUCKET}/out")
        inputs = [f"s3://{BUCKET}/in/a.jsonl.gz", f"s3://{BUCKET}/in/b.jsonl"]
        flags = ["--model", settings["model"], "--level", "token,sentence", "--layers=-1,-2", "--shard-bytes", "25000"]
        result = good("extract", *inputs, "-o", f"s3://{BUCKET}/out", "--bad-rows", "quarantine", *flags)
        assert "already complete" in result.out
        assert result_objects(f"s3://{BUCKET}/out") == before

    def test_another_plan_is_refused_and_nothing_is_written(self, whole, settings):
        before = objects(f"s3://{BUCKET}/out")
        with pytest.raises(PlanMismatch, match="made with another plan: .*; use another folder or --overwrite"):
            extract(f"s3://{BUCKET}/in/a*", f"s3://{BUCKET}/out", **settings)
        assert objects(f"s3://{BUCKET}/out") == before

    def test_an_index_of_it_lies_in_a_folder_and_finds_it_again(self, whole, tmp_path):
        build_index(whole[1], tmp_path / "index", level="sentence", feature="layer_03")
        with open_index(tmp_path / "index") as index:
            assert index.store.path == whole[1].path
        with pytest.raises(StorageError, match="an index lies in a local folder"):
            build_index(whole[1], f"s3://{BUCKET}/index", level="sentence", feature="layer_03")

    def test_standard_input_and_parquet_go_there_too(self, root, settings, tmp_path):
        pl.DataFrame({"text": ["one two", "three"]}).write_parquet(tmp_path / "c.parquet")
        parquet = upload(tmp_path / "c.parquet", root + ".parquet")
        flags = ["--model", settings["model"], "--level", "sentence", "--layers=-1"]
        good("extract", parquet, "-o", f"{root}/parquet", *flags)
        good("extract", "-", "-o", f"{root}/stdin", *flags, stdin=b"one two\nthree\n")
        stores = [open_store(f"{root}/{name}") for name in ("parquet", "stdin")]
        assert stores[0].numpy("sentence", "layer_03").shape == (2, 32)
        assert np.array_equal(*[store.numpy("sentence", "layer_03") for store in stores])


def rerun(url, plan=PLAN, **opening):
    """Run the same extraction again; return the shards that it did."""
    with open_for_writing(url, plan, **opening) as writer:
        todo = writer.pending()
        for shard in todo:
            writer.commit(shard, make_result(plan, shard, n_bad=1))
        writer.complete()
    return [shard.index for shard in todo]


class TestResuming:
    def test_a_run_broken_off_at_any_step_is_finished_by_the_next(self, root, monkeypatch):
        passed: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(steps, "hook", passed.append)
            rerun(f"{root}/whole")
        made = result_objects(f"{root}/whole")
        assert (
            {"plan.written", "part.durable", "receipt.written", "manifest.durable"} <= set(passed) <= set(steps.STEPS)
        )

        def stop_at(point):
            left = [point]

            def hook(name):
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt

            return hook

        for point in range(1, len(passed) + 1, 3):
            url = f"{root}/{point}"
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(steps, "hook", stop_at(point))
                rerun(url)
            assert result_objects(url).items() <= made.items()
            rerun(url)
            assert result_objects(url) == made, passed[point - 1]
            assert verify(url).is_good

    def test_damage_is_named_and_its_shard_alone_done_again(self, root):
        write_store(root, PLAN, n_bad=1)
        made = result_objects(root)
        rng = random.Random(3)
        for name in ("token/part-00001.parquet", "sentence/part-00002.parquet", "_bertfeat/quarantine/00000.jsonl"):
            shard = int(name.rpartition(".")[0][-5:])
            damaged = bytearray(made[name])
            damaged[rng.randrange(len(damaged))] ^= 1
            bucket().pipe_file(f"{root}/{name}", bytes(damaged))
            assert [(p.shard, p.part) for p in verify(root).problems] == [(shard, name)]
            result = bertfeat("verify", root)
            assert (result.code, result.out.startswith(name)) == (1, True)
            assert rerun(root) == [shard]
            assert result_objects(root) == made
        bucket().rm_file(f"{root}/token/part-00000.parquet")
        bucket().pipe_file(f"{root}/token/part-00009.parquet", b"stray")
        assert [str(p) for p in verify(root).problems] == [
            "token/part-00000.parquet: missing",
            "token/part-00009.parquet: belongs to no shard of the plan",
        ]
        assert mark_for_redoing(root, verify(root)) == (0,)
        assert rerun(root) == [0]
        assert result_objects(root) == made
        assert verify(root).is_good

    def test_a_lost_receipt_is_made_again_from_the_manifest(self, root):
        write_store(root, PLAN, n_bad=1)
        made = result_objects(root)
        bucket().rm_file(f"{root}/_bertfeat/receipts/00001.json")
        bucket().pipe_file(f"{root}/_bertfeat/receipts/00002.json", b"{}")
        assert rerun(root) == []
        assert result_objects(root) == made
        assert verify(root).is_good

    def test_overwrite_replaces_a_store_and_nothing_else(self, root):
        write_store(root, make_plan(levels=(Level.WORD,), layers="all"))
        bucket().pipe_file(f"{root}/word/notes.txt", b"mine")
        with pytest.raises(StoreError, match=r"holds files that are no part of a store \(holds word/notes.txt\)"):
            rerun(root, overwrite=True)
        bucket().rm_file(f"{root}/word/notes.txt")
        assert rerun(root, overwrite=True) == [0, 1, 2]
        write_store(f"{root}-fresh", PLAN, n_bad=1)
        assert result_objects(root) == result_objects(f"{root}-fresh")

    def test_what_is_no_store_is_left_alone(self, root):
        bucket().pipe_file(f"{root}/notes.txt", b"mine")
        for overwrite in (False, True):
            with pytest.raises(StoreError, match=r"\(holds notes.txt\); choose another --output"):
                open_for_writing(root, PLAN, overwrite=overwrite)
        with pytest.raises(StoreError, match=r"not a folder \(an object\)"):
            open_for_writing(f"{root}/notes.txt", PLAN)
        assert objects(root) == {"notes.txt": b"mine"}

    def test_a_user_error_before_the_first_commit_leaves_nothing_behind(self, root):
        with pytest.raises(UserError), open_for_writing(root, PLAN):
            raise UserError("no such model")
        assert objects(root) == {}

    def test_a_shard_committed_twice_is_there_once_and_another_runs_part_is_not_replaced(self, root):
        with open_for_writing(root, PLAN) as writer:
            first = writer.commit(PLAN.shards[0], make_result(PLAN, PLAN.shards[0]))
            before = objects(root)
            assert writer.commit(PLAN.shards[0], make_result(PLAN, PLAN.shards[0])) == first
            assert objects(root) == before
            bucket().pipe_file(f"{root}/token/part-00001.parquet", b"another's")
            with pytest.raises(RunError, match="written by another run meanwhile; .* run the same command again"):
                writer.commit(PLAN.shards[1], make_result(PLAN, PLAN.shards[1]))
            assert bucket().cat_file(f"{root}/token/part-00001.parquet") == b"another's"
        assert rerun(root) == [1, 2]
        assert verify(root).is_good


class TestLock:
    def test_a_second_run_is_refused_with_the_first_ones_process(self, root):
        with open_for_writing(root, PLAN) as writer:
            before = objects(root)
            with pytest.raises(StoreError, match=rf"process {os.getpid()} on host .* is writing this store; wait for"):
                open_for_writing(root, PLAN)
            assert objects(root) == before
            writer.close()
        open_for_writing(root, PLAN).close()

    def test_the_lock_of_a_killed_process_is_free(self, root):
        script = (
            "import os, signal, sys; sys.path[:0] = sys.argv[2:]\n"
            "from store_fakes import make_plan; from bertfeat.config import Level\n"
            "from bertfeat.store import open_for_writing\n"
            "writer = open_for_writing(sys.argv[1], make_plan(levels=(Level.TOKEN, Level.SENTENCE)))\n"
            "print(os.getpid(), flush=True); signal.pause()\n"
        )
        command = [sys.executable, "-c", script, root, str(Path(__file__).parent), str(Path(__file__).parents[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            pid = child.stdout.readline().strip()
            with pytest.raises(StoreError, match=f"process {pid} on host"):
                open_for_writing(root, PLAN)
            child.kill()
        with open_for_writing(root, PLAN):
            assert [name for name in objects(root) if "/locks/" in name] == ["_bertfeat/locks/00002.json"]

    def test_a_process_of_another_machine_is_believed_until_its_lease_ends(self, root, monkeypatch):
        open_for_writing(root, PLAN).close()
        there = {**objectlock.this_process(), "host": "elsewhere", "pid": 7, "token": "x", "released": False}
        bucket().pipe_file(f"{root}/_bertfeat/locks/00007.json", json.dumps(there).encode())
        before = objects(root)
        with pytest.raises(
            StoreError, match=r"process 7 on host elsewhere is writing this store, seen \d+ s ago; .*120"
        ):
            open_for_writing(root, PLAN)
        assert objects(root) == before
        monkeypatch.setattr(objectlock, "LEASE_S", 0.0)
        with open_for_writing(root, PLAN):
            assert [name for name in objects(root) if "/locks/" in name] == ["_bertfeat/locks/00008.json"]

    def test_a_run_that_was_taken_for_dead_does_not_finish_the_store(self, root):
        with open_for_writing(root, PLAN) as writer:
            for shard in writer.pending():
                writer.commit(shard, make_result(PLAN, shard))
            bucket().pipe_file(f"{root}/_bertfeat/locks/00002.json", b"{}")
            with pytest.raises(RunError, match="another run has taken this store over"):
                writer.complete()
        assert "manifest.json" not in objects(root)

    def test_the_lock_is_written_again_while_a_run_lasts(self, root, monkeypatch):
        monkeypatch.setattr(objectlock, "BEAT_S", 0.02)
        with open_for_writing(root, PLAN):
            bucket().rm_file(f"{root}/_bertfeat/locks/00001.json")
            while "_bertfeat/locks/00001.json" not in objects(root):
                pass
        assert json.loads(objects(root)["_bertfeat/locks/00001.json"])["released"] is True

    def test_a_process_is_known_by_more_than_its_number(self):
        me = objectlock.this_process()
        assert objectlock.is_here(me)
        assert objectlock.is_running(me)
        assert not objectlock.is_running(me | {"started": "1"})
        assert not objectlock.is_here(me | {"boot": "another"})
        assert not objectlock.is_running({})


class TestServersThatMisbehave:
    def test_one_that_ignores_conditions_is_refused(self, root, server, monkeypatch):
        with proxy(server, without_conditions) as url:
            point_at(monkeypatch, url)
            with pytest.raises(StorageError, match="does not refuse to create an object that is there"):
                open_for_writing(root, PLAN)
        point_at(monkeypatch, server)
        assert objects(root) == {}

    def test_an_answer_that_is_lost_does_no_harm(self, root, server, monkeypatch):
        lost: list[str] = []

        def lose_once(command, path, headers):
            conditional = any(name.lower() == "if-none-match" for name in headers)
            if not conditional or path in lost:
                return False
            lost.append(path)
            return True

        with proxy(server, lose_once) as url:
            point_at(monkeypatch, url)
            write_store(root, PLAN, n_bad=1)
        point_at(monkeypatch, server)
        assert len(lost) > 10
        assert verify(root).is_good
        write_store(f"{root}-fresh", PLAN, n_bad=1)
        assert result_objects(root) == result_objects(f"{root}-fresh")


class TestMistakes:
    def one_line(self, *arguments):
        result = bertfeat(*arguments)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
        return result.err.removeprefix("bertfeat: ").strip()

    def test_a_bucket_that_is_not_there(self, tmp_path, settings):
        (tmp_path / "a.txt").write_text("one\n")
        for arguments in (
            ["extract", str(tmp_path / "a.txt"), "-o", "s3://nowhere/out", "--model", settings["model"]],
            ["extract", "s3://nowhere/a.txt", "-o", str(tmp_path / "out")],
            ["extract", "s3://nowhere/*.txt", "-o", str(tmp_path / "out")],
            ["inspect", "s3://nowhere/out"],
            ["verify", "s3://nowhere/out"],
        ):
            assert "no such bucket; create it, or check its name and the endpoint" in self.one_line(*arguments)
        assert not (tmp_path / "out").exists()

    def test_credentials_that_are_wrong_or_missing(self, monkeypatch, tmp_path):
        with s3_server(INITIAL_NO_AUTH_ACTION_COUNT="0") as url:
            point_at(monkeypatch, url)
            line = self.one_line("inspect", "s3://features/out")
            assert line.startswith("s3://features/out")
            assert ": no access (" in line
            assert "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)" in line
            assert ": no access (" in self.one_line("extract", "s3://features/a.txt", "-o", str(tmp_path / "out"))
            point_at(monkeypatch, url)
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            assert "no access (Unable to locate credentials)" in self.one_line("verify", "s3://features/out")

    @pytest.mark.parametrize(("scheme", "package", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
    def test_a_package_that_is_missing(self, scheme, package, extra, monkeypatch):
        import fsspec.registry

        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(fsspec.registry._registry, scheme, raising=False)
        line = self.one_line("inspect", f"{scheme}://features/out")
        assert f"{scheme}:// needs the package {package}" in line
        assert line.endswith(f"run pip install 'bertfeat[{extra}]'")

    def test_places_that_are_none(self, tmp_path):
        for place, reason in (
            ("az://features/out", "no object store that is known; pass a path, or a URL with s3://, gs://, gcs://"),
            ("s3://", "not a place in an object store; write s3://BUCKET/NAME"),
            ("s3://features//out", "not a place in an object store"),
        ):
            assert reason in self.one_line("inspect", place)
        with pytest.raises(StorageError, match="a URL that was made a Path, which folds its slashes"):
            open_store(Path("s3://features/out"))
        assert "no such object; check the name" in self.one_line("extract", f"s3://{BUCKET}/x.txt", "-o", str(tmp_path))
        assert "no object matches" in self.one_line("extract", f"s3://{BUCKET}/x*.txt", "-o", str(tmp_path))
        upload(Path(__file__), f"s3://{BUCKET}/folder/a.txt")
        assert "is a folder; name its objects" in self.one_line("extract", f"s3://{BUCKET}/folder", "-o", str(tmp_path))
        assert "no such folder" in self.one_line("inspect", f"s3://{BUCKET}/nothing-here")

    def test_probes_are_written_to_folders(self, tmp_path):
        arguments = ["probe", "fit", str(tmp_path), "-o", "s3://features/probe", "--label", "x", "--head", "ridge"]
        assert "a probe lies in a local folder" in self.one_line(*arguments, "--level", "word", "--feature", "layer_01")
        assert not list(Path.cwd().glob("s3:*"))
