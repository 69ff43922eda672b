"""Pieces of the Ray runner, without Ray: tries, fence, turns, shares, actors, and refused flags."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from bertfeat.config import ExtractConfig
from bertfeat.devices import planned_kind
from bertfeat.errors import ConfigError, RunError, StoreError, UserError
from bertfeat.runners import fence, ray_actor, ray_cluster
from bertfeat.runners.fence import FileFence, end_earlier_runs, fence_around
from bertfeat.runners.ray_actor import ActorSetup, ShardActor, Turns
from bertfeat.runners.ray_cluster import Machine, Share, share_out
from bertfeat.runners.tries import Tries, given_up
from bertfeat.runners.worker import Done, Failed
from bertfeat.store import layout
from bertfeat.store.lock import StoreLock
from bertfeat.store.openfolder import folder_at
from tests.support.command_line import bertfeat
from tests.support.runner_fakes import MakeFake, make_shards, wait_until

HOLD = (
    "import sys; from pathlib import Path; from bertfeat.runners.fence import FileFence\n"
    "with FileFence(Path(sys.argv[1])).held():\n    print('held', flush=True); sys.stdin.read()\n"
)


def hold(mark: Path) -> subprocess.Popen[bytes]:
    """Start a process that keeps a fence up until its standard input ends."""
    worker = subprocess.Popen([sys.executable, "-c", HOLD, str(mark)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"held\n"
    return worker


@pytest.fixture
def mark(tmp_path):
    """The marker file that a killed run left in `store`."""
    path = tmp_path / "store" / layout.TMP / "run-0123.tmp"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_three_tries_and_no_fourth_whoever_counts(tmp_path):
    assert [Tries(tmp_path).begin("00007") for _ in range(5)] == [True, True, True, False, False]
    assert Tries(tmp_path).count("00007") == 3
    assert Tries(tmp_path).begin("00008")
    Tries(tmp_path).forget("00007")
    assert Tries(tmp_path).count("00007") == 0
    assert Tries(tmp_path).count("00008") == 1


def test_a_try_that_was_taken_back_is_given_again_and_the_last_reason_is_kept(tmp_path):
    tries = Tries(tmp_path)
    assert tries.reason("00001").startswith("its worker died each time")
    assert str(given_up({12: "died", 3: "KeyError: 1"})).startswith(
        "shards failed 3 times: 00003 (KeyError: 1), 00012 (died); the others are done"
    )
    tries.begin("00001")
    tries.explain("00001", "KeyError: 'ü'")
    tries.begin("00001")
    assert tries.reason("00001") == "KeyError: 'ü'"
    tries.take_back("00001")
    assert tries.count("00001") == 1
    tries.forget("00001")
    tries.take_back("00001")
    assert list(tmp_path.iterdir()) == []


def test_tries_are_unfinished_files_of_the_store_which_the_next_run_removes(tmp_path):
    folder = tmp_path / layout.TMP
    folder.mkdir(parents=True)
    with fence_around(folder):
        Tries(folder).begin("00001")
        Tries(folder).begin("start-0123456789abcdef")
        assert len(list(folder.iterdir())) == 3
        assert not list(layout.foreign_entries(tmp_path))
        folder_at(tmp_path).clean_tmp()
        assert list(folder.iterdir()) == []


def test_a_fence_is_up_until_its_end_and_workers_hold_it_side_by_side(tmp_path):
    with fence_around(tmp_path) as first:
        copy = pickle.loads(pickle.dumps(first))
        with first.held(), copy.held(), fence_around(tmp_path) as second, second.held():
            pass
        with copy.held():
            pass
    down = "its run has ended, or this machine does not see the store; .* a file system that all machines share"
    with pytest.raises(RunError, match=down), copy.held():
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_the_system_refuses_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    tries, mark = Tries(tmp_path / "file"), FileFence(tmp_path / "file" / "run-0.tmp")
    for ask in (tries.begin, tries.forget, tries.reason):
        with pytest.raises(RunError, match=r"file/try-00007\.\d\.tmp: not a directory; fix the cause"):
            ask("00007")
    with pytest.raises(RunError, match=r"run-0\.tmp: not a directory; fix the cause"), mark.held():
        pass
    with pytest.raises(RunError, match=r"run-0\.tmp: not a directory; fix the cause"):
        mark.take_down()


def test_the_end_of_a_run_waits_for_a_worker_that_writes(tmp_path):
    with fence_around(tmp_path):
        (mark,) = tmp_path.iterdir()
        worker = hold(mark)
        let_go = threading.Event()

        def release() -> None:
            let_go.set()
            worker.communicate(timeout=30)

        timer = threading.Timer(0.5, release)
        timer.start()
    assert let_go.is_set()
    timer.join(30)
    assert worker.poll() == 0
    assert not mark.exists()


def test_a_run_does_not_begin_while_a_worker_of_a_killed_one_writes(tmp_path, mark, monkeypatch):
    root, worker = tmp_path / "store", hold(mark)
    monkeypatch.setattr(fence, "_WAIT_S", 0.2)
    with pytest.raises(StoreError, match=r"a worker of an earlier run on Ray holds it and writes; end its Ray job"):
        end_earlier_runs(root)
    assert mark.exists()
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate(timeout=30)
    end_earlier_runs(root)
    assert not mark.exists()
    with pytest.raises(RunError, match="its run has ended"), FileFence(mark).held():
        pass


def test_the_fence_of_a_running_run_stays(tmp_path, mark):
    lock = StoreLock(tmp_path / "store")
    with pytest.raises(StoreError, match=f"process {os.getpid()} on host .* is writing this store"):
        end_earlier_runs(tmp_path / "store")
    lock.release()
    with FileFence(mark).held():
        pass


def test_a_missing_store_and_a_link_to_one_are_left_alone(tmp_path, mark):
    end_earlier_runs(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "link").symlink_to("store")
    end_earlier_runs(tmp_path / "link")
    assert [path.name for path in (tmp_path / "store" / "_bertfeat").iterdir()] == ["tmp"]
    assert mark.exists()


def test_a_thread_that_asks_to_be_alone_waits_and_keeps_later_ones_out():
    turns, seen = Turns(), []
    first, second = threading.Event(), threading.Event()

    def work(name: str, alone: bool, until: threading.Event | None) -> None:
        with turns.take(alone=alone):
            seen.append(name)
            if until is not None:
                assert until.wait(30)
            seen.append(f"{name} ends")

    def start(*what) -> threading.Thread:
        thread = threading.Thread(target=work, args=what)
        thread.start()
        return thread

    threads = [start("a", False, first), start("b", False, first)]
    wait_until(lambda: len(seen) == 2)
    threads.append(start("suspect", True, second))
    wait_until(lambda: turns._n_waiting_alone == 1)
    threads.append(start("late", False, None))
    first.set()
    wait_until(lambda: "suspect" in seen)
    assert seen[-1] == "suspect"
    second.set()
    for thread in threads:
        thread.join(30)
    assert seen[-4:] == ["suspect", "suspect ends", "late", "late ends"]


@pytest.mark.parametrize(
    ("machines", "n_actors", "on_gpu", "share"),
    [
        ([Machine(2, 0)], 2, False, Share(2, 1)),
        ([Machine(2, 0)], None, False, Share(1, 2)),
        ([Machine(0, 0), Machine(16, 0), Machine(16, 0)], None, False, Share(2, 16)),
        ([Machine(8, 0), Machine(24, 0)], 4, False, Share(4, 8)),
        ([Machine(8, 0), Machine(24, 0)], 3, False, Share(3, 8)),
        ([Machine(4, 0)], 9, False, Share(9, 1)),
        ([Machine(64, 8), Machine(64, 8)], None, True, Share(16, 8)),
        ([Machine(64, 8), Machine(96, 0)], None, True, Share(8, 8)),
        ([Machine(64, 8)], 3, True, Share(3, 21)),
        ([Machine(8, 0)], 2, True, Share(2, 1)),
    ],
)
def test_actors_get_as_many_cpus_as_all_of_them_can_have(machines, n_actors, on_gpu, share):
    assert share_out(machines, n_actors, on_gpu=on_gpu) == share
    with pytest.raises(UserError, match=r"has no GPU now; if it grows on demand, pass `workers`"):
        share_out([Machine(8, 0)], None, on_gpu=True)
    with pytest.raises(UserError, match="has no CPU now"):
        share_out([], None, on_gpu=False)


@pytest.fixture
def actor(tmp_path, monkeypatch):
    """An actor in this process, whose end is an exception; and the fake that it runs."""

    class Ended(BaseException):
        pass

    def exit_(code: int) -> None:
        raise Ended

    monkeypatch.setattr(ray_actor, "_actor_id", lambda: "a1")
    monkeypatch.setattr(os, "_exit", exit_)
    (tmp_path / "marks").mkdir()
    (tmp_path / "notes").mkdir()
    with fence_around(tmp_path / "marks") as up:

        def make(n_writers: int = 1, **deeds: str) -> tuple[ShardActor, MakeFake]:
            named = {name.replace("_", ":"): deed for name, deed in deeds.items()}
            fake = MakeFake(tmp_path / "notes", named, n_writers)
            return ShardActor(pickle.dumps(ActorSetup(fake, tmp_path / "marks", up, 1))), fake

        make.ended = Ended
        make.marks = lambda: sorted(p.name for p in (tmp_path / "marks").glob("try-*"))
        yield make


def run(actor: ShardActor, index: int) -> Done | Failed:
    row = actor({"shard": [pickle.dumps(make_shards(index + 1)[index])]})
    return pickle.loads(row["outcome"][0])


def test_an_actor_loads_once_and_leaves_no_tries_behind(actor):
    made, fake = actor()
    assert [run(made, index).receipt.shard for index in range(3)] == [0, 1, 2]
    assert fake.done() == [0, 1, 2]
    assert len(fake.noted("start")) == 1
    assert actor.marks() == []


def test_three_shards_at_once_are_in_three_stages(actor, monkeypatch):
    made, fake = actor()
    together = threading.Barrier(3, timeout=30)
    monkeypatch.setattr(MakeFake, "act", lambda self, place: together.wait() if place in waits else None)
    waits = {"commit:0", "encode:1", "prepare:2"}
    threads = []
    for index in range(3):
        threads.append(threading.Thread(target=run, args=(made, index)))
        threads[-1].start()
        wait_until(lambda n=index: fake.noted(f"{('commit', 'encode', 'prepare')[n]}:{n}"))
    for thread in threads:
        thread.join(30)
    assert fake.done() == [0, 1, 2]


def test_an_actor_commits_as_many_shards_at_once_as_it_has_writers(actor):
    made, fake = actor(4, **{f"commit_{shard}": "wait for all" for shard in range(4)})
    threads = [threading.Thread(target=run, args=(made, shard)) for shard in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert fake.done() == [0, 1, 2, 3]


def test_a_bug_ends_the_process_and_the_fourth_time_the_shard_is_given_up(actor):
    for _ in range(3):
        made, _ = actor(encode_1="bug")
        with pytest.raises(actor.ended):
            run(made, 1)
    made, fake = actor(encode_1="bug")
    outcome = run(made, 1)
    assert isinstance(outcome, Failed)
    assert (outcome.shard, outcome.error, outcome.reason) == (1, None, "KeyError: 'a bug at encode:1'")
    assert len(fake.noted("encode:1")) == 3
    assert isinstance(run(made, 0), Done)


def test_an_error_on_purpose_is_passed_on_unchanged(actor):
    outcome = run(actor(commit_2="bad input")[0], 2)
    assert isinstance(outcome, Failed)
    assert outcome.shard == 2
    assert str(outcome.error) == "corpus.txt:7: no such thing"
    outcome = run(actor(start="bad config")[0], 2)
    assert isinstance(outcome, Failed)
    assert outcome.shard is None
    assert isinstance(outcome.error, ConfigError)


def test_an_actor_of_a_run_that_has_ended_writes_nothing(actor, tmp_path):
    made, fake = actor()
    run(made, 0)
    end_mark = next((tmp_path / "marks").glob("run-*"))
    end_mark.unlink()
    outcome = run(made, 1)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, RunError)
    assert fake.done() == [0]
    assert list((tmp_path / "marks").iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ray-address", "auto"], "--ray-address auto has no effect without --runner ray; add it"),
        (["--runner", "ray", "--ray-address", "ray://"], "must be one of auto, local, HOST:PORT, ray://HOST:PORT"),
        (["--runner", "ray", "--ray-address", "somewhere"], "--ray-address 'somewhere' must be one of auto"),
        (["--runner", "ray", "--ray-address", "http://h:80/x"], "must be one of auto"),
        (["--runner", "ray", "--ray-address", "h:99999"], "must be one of auto"),
        (["--runner", "ray", "--device", "cuda:1"], "--device cuda:1 numbers devices, which Ray assigns"),
        (["--runner", "ray", "--workers", "0"], "--workers 0 is below 1"),
        (["--runner", "slurm"], "'slurm' is not one of 'local', 'ray'"),
    ],
)
def test_flags_that_are_refused(tmp_path, flags, message):
    result = bertfeat("extract", "corpus.txt", "-o", tmp_path / "s", *flags)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert not (tmp_path / "s").exists()


def test_an_address_without_a_server_is_reported_at_once(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "corpus.txt").write_text("one\n")
    flags = ["--runner", "ray", "--ray-address", f"ray://{address}"]
    result = bertfeat("extract", tmp_path / "corpus.txt", "-o", tmp_path / "s", *flags)
    assert result.code == 2
    assert result.err.startswith(f"bertfeat: --ray-address ray://{address}: no answer (connection refused)")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_without_the_extra_the_command_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    (tmp_path / "corpus.txt").write_text("one\n")
    result = bertfeat("extract", tmp_path / "corpus.txt", "-o", tmp_path / "s", "--runner", "ray")
    assert result.code == 2
    assert result.err == "bertfeat: --runner ray needs Ray, which is not installed; run: pip install 'bertfeat[ray]'\n"
    assert not (tmp_path / "s").exists()


def test_a_folder_named_ray_is_not_ray(tmp_path, monkeypatch):
    (tmp_path / "ray").mkdir()
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))
    with pytest.raises(UserError, match=r"pip install 'bertfeat\[ray\]'"):
        ray_cluster.check_ray(None)


def test_standard_input_is_copied_where_every_machine_sees_it(tmp_path):
    result = bertfeat("extract", "-", "-o", tmp_path / "none" / "s", "--runner", "ray", stdin=b"one\n")
    assert result.code == 2
    assert f"create {tmp_path / 'none'} first" in result.err


def test_a_plan_for_gpus_elsewhere_needs_none_here():
    assert planned_kind("cuda", elsewhere=True) == "cuda"
    assert planned_kind("cpu", elsewhere=True) == "cpu"
    assert ExtractConfig(runner="ray", ray_address="ray://head:10001").ray_address == "ray://head:10001"
    assert ExtractConfig().planned() == ExtractConfig(runner="ray", ray_address="auto").planned()
