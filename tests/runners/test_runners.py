"""Runners in this process and in worker processes that die, fail and hang at every stage; settings of that on Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bertfeat.errors import ConfigError, InputError, RunError, UserError
from bertfeat.runners.dispatch import run_shards
from bertfeat.runners.ray import Machine, share_out
from tests.support.command_line import bertfeat
from tests.support.places import ROOT
from tests.support.runner_fakes import Heard, MakeFake, is_alive, make_shards, wait_until

STAGES = ("prepare", "encode", "commit")
# The start of a script: `folder` is the first argument.
SCRIPT = """
import sys; from pathlib import Path; folder = Path(sys.argv[1]); sys.path.insert(0, sys.argv[2])
from tests.support.runner_fakes import Heard, MakeFake, make_shards
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


@pytest.mark.parametrize("n_workers", [1, 3])
def test_every_shard_is_done_once_by_no_more_workers_than_there_are(tmp_path, n_workers):
    make = MakeFake(tmp_path)
    heard = run(make, 5, n_workers)
    assert sorted(heard.shards) == make.done() == [0, 1, 2, 3, 4]
    starts = make.noted("start")
    assert 1 <= len(starts) <= min(n_workers, 5)
    assert (os.getpid() in starts) == (n_workers == 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_is_killed_is_replaced(tmp_path, stage):
    make = MakeFake(tmp_path, {f"{stage}:2": "die once"})
    assert sorted(run(make).shards) == [0, 1, 2, 3, 4, 5]
    first, second = make.noted(f"{stage}:2")
    assert first != second


@pytest.mark.promise("dead-worker")
@pytest.mark.parametrize(
    ("deed", "why"), [("die", "killed by SIGKILL, perhaps out of memory"), ("exit", "exit code 7")]
)
def test_a_shard_that_kills_its_worker_again_is_named_with_the_cause_and_the_others_are_done(tmp_path, deed, why):
    make = MakeFake(tmp_path, {"encode:1": deed})
    with pytest.raises(RunError) as got:
        run(make, 7)
    assert str(got.value) == (
        f"shards failed twice: 00001 ({why}); the others are done: run the same command again to try them"
    )
    assert got.value.exit_code == 3
    assert set(make.done()) == {0, 2, 3, 4, 5, 6}
    assert len(make.noted("encode:1")) == 2


@pytest.mark.parametrize(("stage", "shard"), [("prepare", 0), ("commit", 5)])
def test_a_bug_in_a_stage_is_named_and_never_hangs(tmp_path, stage, shard):
    """The last shard fails while its worker waits for another one, which never comes."""
    make = MakeFake(tmp_path, {f"{stage}:{shard}": "bug"})
    with pytest.raises(RunError, match=rf"twice: 0000{shard} \(KeyError: 'a bug at {stage}:{shard}'\);"):
        run(make)
    # A shard that was being written when its neighbour failed may be done twice.
    assert set(make.done()) == {0, 1, 2, 3, 4, 5} - {shard}


@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_without_workers_is_raised_as_it_is_and_never_hangs(tmp_path, stage):
    make = MakeFake(tmp_path, {f"{stage}:2": "bug"})
    with pytest.raises(KeyError, match=f"a bug at {stage}:2"):
        run(make, n_workers=1)
    assert {0} <= set(make.done()) <= {0, 1}


@pytest.mark.parametrize("stage", ["prepare", "commit"])
def test_an_error_raised_on_purpose_ends_the_run_at_once_as_it_is(tmp_path, stage):
    make = MakeFake(tmp_path, {f"{stage}:5": "bad input"})
    with pytest.raises(InputError, match=r"^corpus.txt:7: no such thing$") as got:
        run(make)
    assert (got.value.path, got.value.row, got.value.exit_code) == ("corpus.txt", 7, 2)
    assert not any(is_alive(pid) for pid in make.noted("start"))


def test_workers_that_do_not_start_end_the_run(tmp_path):
    with pytest.raises(ConfigError, match=r"^--layers 99 is wrong$"):
        run(MakeFake(tmp_path, {"start": "bad config"}), n_workers=4)
    for deed, why in (("bug", "KeyError: 'a bug at start'"), ("die", "killed by SIGKILL.*")):
        with pytest.raises(RunError, match=rf"^workers do not start \({why}\); .*$"):
            run(MakeFake(tmp_path, {"start": deed}))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_never_outlive_their_parent(tmp_path, number):
    deeds = "{f'encode:{n}': 'sleep' for n in range(4)}"
    code = f"run_shards(MakeFake(folder / 'notes', {deeds}), make_shards(4), 2, Heard())\n"
    parent = subprocess.Popen(script(tmp_path, code), stderr=subprocess.PIPE, text=True)
    make = MakeFake(tmp_path / "notes")
    wait_until(lambda: sum(len(make.noted(f"encode:{n}")) for n in range(4)) == 2)
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
    """And modules in the folder where it runs do not take the place of Python's."""
    code = (
        "with (folder / 'ran').open('a') as file: file.write('x')\n"
        "run_shards(MakeFake(folder / 'notes'), make_shards(3), 2, Heard())\n"
    )
    command, here = script(tmp_path, code), tmp_path / "here"
    here.mkdir()
    (here / "pickle.py").write_text("raise SystemExit")
    subprocess.run(command, check=True, timeout=60, cwd=here)
    assert (tmp_path / "ran").read_text() == "x"
    assert MakeFake(tmp_path / "notes").done() == [0, 1, 2]


@pytest.mark.parametrize(
    ("machines", "n_actors", "on_gpu", "share"),
    [
        ([Machine(2, 0)], 2, False, (2, 1)),
        ([Machine(0, 0), Machine(16, 0), Machine(16, 0)], None, False, (2, 16)),
        ([Machine(8, 0), Machine(24, 0)], 3, False, (3, 8)),
        ([Machine(4, 0)], 9, False, (9, 1)),
        ([Machine(64, 8), Machine(96, 0)], None, True, (8, 8)),
        ([Machine(64, 8)], 3, True, (3, 21)),
    ],
)
def test_actors_get_as_many_cpus_as_all_of_them_can_have(machines, n_actors, on_gpu, share):
    assert share_out(machines, n_actors, on_gpu=on_gpu) == share


@pytest.mark.parametrize(("on_gpu", "what"), [(True, "GPU"), (False, "CPU")])
def test_a_cluster_without_room_is_refused(on_gpu, what):
    with pytest.raises(UserError, match=rf"has no {what} now; if it grows on demand, pass `workers`"):
        share_out([Machine(8 * on_gpu, 0)], None, on_gpu=on_gpu)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ray-address", "auto"], "--ray-address auto has no effect without --runner ray; add it"),
        (["--runner", "ray", "--ray-address", "somewhere"], "--ray-address 'somewhere' must be one of auto, local, "),
        (["--runner", "ray", "--device", "cuda:1"], "--device cuda:1 numbers devices, which Ray assigns"),
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
    assert not (tmp_path / "s").exists()
