"""Runners in this process and in worker processes that die, fail and hang at every stage."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bertfeat import errors
from bertfeat.errors import BertfeatError, ConfigError, InputError, PlanMismatch, RunError
from bertfeat.runners import processes
from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.local import run_overlapped
from bertfeat.runners.processes import ProcessPool
from tests.support.places import ROOT
from tests.support.runner_fakes import FakeTask, Heard, MakeFake, is_alive, make_shards, wait_until

STAGES = ("prepare", "encode", "commit")
# The start of a script: `folder` is the first argument.
SCRIPT = """
import sys; from pathlib import Path; folder = Path(sys.argv[1]); sys.path.insert(0, sys.argv[2])
from tests.support.runner_fakes import FakeTask, Heard, MakeFake, make_shards
from bertfeat.errors import RunError
from bertfeat.runners.dispatch import run_shards
"""


def script(folder: Path, code: str) -> list[str]:
    """Write a script without a main guard; return the command that runs it."""
    (folder / "script.py").write_text(SCRIPT + code)
    (folder / "notes").mkdir()
    return [sys.executable, str(folder / "script.py"), str(folder), str(ROOT)]


def run(make: MakeFake, n_shards: int = 6, n_workers: int = 2) -> Heard:
    heard = Heard()
    run_shards(make, make_shards(n_shards), n_workers, heard)
    return heard


@pytest.mark.parametrize("n_workers", [1, 2, 3, 8])
def test_every_shard_is_done_once_by_no_more_workers_than_there_are(tmp_path, n_workers):
    make = MakeFake(tmp_path)
    heard = run(make, 5, n_workers)
    assert sorted(heard.shards) == make.done() == [0, 1, 2, 3, 4]
    assert heard.n_tokens == 15
    starts = make.noted("start")
    assert len(starts) == min(n_workers, 5)
    assert (os.getpid() in starts) == (n_workers == 1)
    for file in tmp_path.iterdir():
        file.unlink()
    run(make, 0)
    assert list(tmp_path.iterdir()) == []
    run(make, 1, 4)
    assert make.noted("start") == [os.getpid()], "one shard needs no process"


def test_several_writers_commit_at_once_and_no_more_shards_wait_than_there_are(tmp_path):
    meeting = threading.Barrier(3, timeout=60)
    n_written, n_encoded = [], []

    class Meeting(FakeTask):
        def encode(self, prepared, progress):
            n_encoded.append(prepared.index)
            assert len(n_encoded) - len(n_written) <= 4
            return super().encode(prepared, progress)

        def commit(self, shard, result):
            meeting.wait()
            n_written.append(shard.index)
            return super().commit(shard, result)

    receipts = run_overlapped(Meeting(MakeFake(tmp_path, n_writers=3)), make_shards(6), Heard())
    assert sorted(receipt.shard for receipt in receipts) == [0, 1, 2, 3, 4, 5]


def test_a_process_has_a_shard_for_each_of_its_writers(tmp_path):
    make = MakeFake(tmp_path, {f"commit:{shard}": "wait for all" for shard in range(5)}, n_writers=5)
    receipts = ProcessPool(make, make_shards(7), 1, Heard()).run()
    assert sorted(receipt.shard for receipt in receipts) == list(range(7))


def test_handing_out_takes_no_longer_the_more_shards_there_are(tmp_path, monkeypatch):
    class NoPipe:
        def send_bytes(self, data):
            pass

    n_fed = 0
    feed = ProcessPool._feed

    def counted(self, process, n_ahead):
        nonlocal n_fed
        n_fed += 1
        feed(self, process, n_ahead)

    monkeypatch.setattr(processes, "_start", lambda number, n_workers: processes._Process(number, None, NoPipe()))
    monkeypatch.setattr(ProcessPool, "_feed", counted)
    pool = ProcessPool(MakeFake(tmp_path), make_shards(10_000), 2, Heard())
    pool._hire()
    assert [len(process.held) for process in pool._processes] == [3, 3]
    assert n_fed == 6
    # A worker with more writers takes at most its share of the last shards.
    few = ProcessPool(MakeFake(tmp_path), make_shards(8), 2, Heard())
    few._hire()
    few._processes[0].n_ahead = 6
    few._hire()
    assert [len(process.held) for process in few._processes] == [4, 3]


@pytest.mark.parametrize("n_writers", [1, 3])
def test_a_receipt_does_not_wait_for_the_next_shard(tmp_path, n_writers):
    asked = threading.Event()

    class Slow(FakeTask):
        def prepare(self, shard):
            if shard.index == 1:
                assert asked.wait(60)
            return super().prepare(shard)

    receipts = run_overlapped(Slow(MakeFake(tmp_path, n_writers=n_writers)), make_shards(2), Heard())
    assert next(receipts).shard == 0
    asked.set()
    assert next(receipts).shard == 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_is_killed_is_replaced(tmp_path, stage):
    make = MakeFake(tmp_path, {f"{stage}:2": "die once"})
    assert sorted(run(make).shards) == [0, 1, 2, 3, 4, 5]
    assert len(make.noted("start")) == 3
    assert len(make.noted(f"{stage}:2")) == 2


def test_a_shard_that_always_kills_its_worker_gets_three_tries_and_the_others_are_done(tmp_path):
    make = MakeFake(tmp_path, {"encode:1": "die"})
    with pytest.raises(
        RunError, match=r"^shards failed 3 times: 00001 \(killed by SIGKILL.*run the same command"
    ) as got:
        run(make, 7)
    assert got.value.exit_code == 3
    assert make.done() == [0, 2, 3, 4, 5, 6]
    assert len(make.noted("encode:1")) == 3


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGABRT, "SIGABRT"),
        pytest.param(signal.SIGSEGV, "SIGSEGV", marks=pytest.mark.long),
        (40, "signal 40"),
    ],
)
def test_a_shard_that_aborts_its_worker_is_named_with_the_cause(tmp_path, number, name):
    """An abort or a crash in a C++ library, and a signal without a name."""
    with pytest.raises(
        RunError, match=rf"^shards failed 3 times: 00001 \(killed by {name}\); the others are done: .*$"
    ):
        run(MakeFake(tmp_path, {"prepare:1": f"signal {int(number)}"}), 3)
    with pytest.raises(RunError, match=rf"^worker processes do not start \(killed by {name}\); pass `workers=1`"):
        run(MakeFake(tmp_path, {"start": f"signal {int(number)}"}))


def test_a_system_that_starts_no_more_processes_is_one_line(tmp_path):
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))\n"
        "try: run_shards(MakeFake(folder / 'notes'), make_shards(3), 2, Heard())\n"
        "except RunError as error: print(error)\n"
    )
    done = subprocess.run(script(tmp_path, code), capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "worker processes do not start (too many open files); pass `workers=1`\n", done.stderr


@pytest.mark.parametrize("shard", [0, 5])
@pytest.mark.parametrize("stage", STAGES)
def test_a_bug_in_a_stage_is_named_after_three_tries_and_never_hangs(tmp_path, stage, shard):
    """The last shard fails while its worker waits for another one, which never comes."""
    make = MakeFake(tmp_path, {f"{stage}:{shard}": "bug"})
    with pytest.raises(RunError, match=rf"3 times: 0000{shard} \(KeyError: 'a bug at {stage}:{shard}'\)"):
        run(make)
    # A shard that was being written when its neighbour failed may be done twice.
    assert set(make.done()) == {0, 1, 2, 3, 4, 5} - {shard}


@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_without_workers_is_raised_as_it_is_and_never_hangs(tmp_path, stage):
    make = MakeFake(tmp_path, {f"{stage}:2": "bug"})
    with pytest.raises(KeyError, match=f"a bug at {stage}:2"):
        run(make, n_workers=1)
    assert {0} <= set(make.done()) <= {0, 1}


@pytest.mark.parametrize("stage", STAGES)
def test_an_error_raised_on_purpose_ends_the_run_at_once_as_it_is(tmp_path, stage):
    make = MakeFake(tmp_path, {f"{stage}:5": "bad input"})
    with pytest.raises(InputError, match=r"^corpus.txt:7: no such thing$") as got:
        run(make)
    assert (got.value.path, got.value.row, got.value.exit_code) == ("corpus.txt", 7, 2)
    assert not any(is_alive(pid) for pid in make.noted("start"))


def test_an_error_before_the_first_shard_is_reported_once(tmp_path):
    with pytest.raises(ConfigError, match=r"^--layers 99 is wrong$"):
        run(MakeFake(tmp_path, {"start": "bad config"}), n_workers=4)
    with pytest.raises(RunError, match=r"cannot begin \(KeyError: 'a bug at start'\)") as got:
        run(MakeFake(tmp_path, {"start": "bug"}), n_workers=4)
    assert "\n" not in str(got.value)


def test_workers_that_die_before_they_begin_end_the_run(tmp_path):
    make = MakeFake(tmp_path, {"start": "exit"})
    with pytest.raises(RunError, match=r"do not start \(exit code 7\)"):
        run(make)
    assert len(make.noted("start")) <= 4


def test_shards_larger_than_the_pipe_and_messages_both_ways_do_not_block(tmp_path):
    make, heard = MakeFake(tmp_path), Heard()
    shards = make_shards(6, n_slices=20_000, n_rows=5_000)
    assert len(pickle.dumps(shards[0])) > 400_000
    run_shards(make, shards, 2, heard)
    assert heard.n_tokens == 6 * 5_000 * 3


def test_workers_end_when_the_progress_fails(tmp_path):
    class Broken(Heard):
        def committed(self, receipt):
            raise KeyboardInterrupt

    make = MakeFake(tmp_path, {"encode:3": "sleep"})
    with pytest.raises(KeyboardInterrupt):
        run_shards(make, make_shards(4), 2, Broken())
    assert not any(is_alive(pid) for pid in make.noted("start"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_never_outlive_their_parent(tmp_path, number):
    code = (
        "make = MakeFake(folder / 'notes', {f'encode:{n}': 'sleep' for n in range(4)})\n"
        "run_shards(make, make_shards(4), 2, Heard())\n"
    )
    parent = subprocess.Popen(script(tmp_path, code), stderr=subprocess.PIPE, text=True)
    make = MakeFake(tmp_path / "notes")
    wait_until(lambda: len(make.noted("encode:0")) + len(make.noted("encode:1")) == 2)
    workers = make.noted("start")
    assert len(workers) == 2
    assert all(map(is_alive, workers))
    parent.send_signal(number)
    errors = parent.communicate(timeout=30)[1]
    wait_until(lambda: not any(map(is_alive, workers)), 10)
    assert parent.returncode in (-number, 130)
    # The parent's own traceback at most; the workers print nothing.
    assert errors.count("Traceback") == (number == signal.SIGINT)


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    code = (
        "with (folder / 'ran').open('a') as file: file.write('x')\n"
        "run_shards(MakeFake(folder / 'notes'), make_shards(3), 2, Heard())\n"
    )
    subprocess.run(script(tmp_path, code), check=True, timeout=60)
    assert (tmp_path / "ran").read_text() == "x"
    assert MakeFake(tmp_path / "notes").done() == [0, 1, 2]


def kinds(base: type[BertfeatError] = BertfeatError) -> list[type[BertfeatError]]:
    return [base, *(kind for child in base.__subclasses__() for kind in kinds(child))]


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind.__module__ == errors.__name__])
def test_errors_pickle_without_loss(kind):
    if kind is PlanMismatch:
        error: BertfeatError = PlanMismatch("s: made with other settings", {"layers": (1, 2)})
    elif issubclass(kind, InputError):
        error = kind("no such thing", path="corpus.txt", row=7)
    else:
        error = kind("wrong")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.exit_code, vars(again)) == (str(error), error.exit_code, vars(error))
