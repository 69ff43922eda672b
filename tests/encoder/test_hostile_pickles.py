"""Hostile pickle files: each is refused in one line within its limits, runs nothing and leaves nothing."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bertfeat.encoder import pickleprocess, picklereader
from bertfeat.encoder.pickleprocess import Limits, read_pickles
from bertfeat.errors import CheckpointError, RunError
from tests.support.hostile_pickles import calls, damaged, large, saved
from tests.support.pickle_reader import Reader

# Less than any pickle needs to do harm, and more than a small one needs to be read.
SMALL = Limits(extra_bytes=300_000_000, base_s=1)


def refusal(path: Path, limits: Limits = SMALL) -> str:
    work = path.parent / "work"
    work.mkdir()
    with pytest.raises(CheckpointError) as caught:
        read_pickles([path], work, limits)
    message = str(caught.value)
    assert str(path.parent) in message
    assert message.isprintable()
    assert caught.value.exit_code == 2
    written = {entry.name for entry in work.iterdir()}
    assert written == {"report", *map(str, range(len(written) - 1))}
    assert sum(entry.stat().st_size for entry in work.iterdir()) < 2_000_000
    return message


@pytest.mark.usefixtures("forked")
def test_pickles_that_call_are_refused_and_leave_no_canary(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for number, (name, (content, said)) in enumerate(calls(canary).items()):
        path = tmp_path / str(number) / "pytorch_model.bin"
        path.parent.mkdir()
        path.write_bytes(content)
        assert re.search(said, message := refusal(path)), (name, message)
        assert not canary.exists(), name


@pytest.mark.usefixtures("forked")
def test_pickles_that_are_damaged_or_hold_no_tensors_are_refused(tmp_path: Path) -> None:
    for number, (name, (content, said)) in enumerate(damaged().items()):
        path = tmp_path / str(number) / "pytorch_model.bin"
        path.parent.mkdir()
        path.write_bytes(content)
        assert re.search(said, message := refusal(path)), (name, message)


@pytest.mark.usefixtures("forked")
def test_pickles_that_ask_for_memory_or_time_meet_their_limit(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("memory is limited on Linux only")
    for number, (name, (content, said)) in enumerate(large().items()):
        path = tmp_path / str(number) / "pytorch_model.bin"
        path.parent.mkdir()
        path.write_bytes(content)
        assert re.search(said, message := refusal(path)), (name, message)


def test_code_in_the_process_could_do_nothing(forked: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a hole in torch might allow: files, connections and programs are refused by the system and by Python."""
    if picklereader.landlock_version() < 4:
        pytest.skip("this system has no Landlock, or one that knows no connections")
    (tmp_path / "secret").write_text("x")
    # As where a script is run in the user's folder.
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(saved({"weight": torch.ones(1)}))
    with socket.create_server(("127.0.0.1", 0)) as server:
        tried = {"secret": str(tmp_path / "secret"), "canary": str(tmp_path / "canary")}
        forked.further = {"tried": {**tried, "port": server.getsockname()[1]}}
        said = _said(path)
    assert set(said["system"].values()) == {-1}, said
    assert set(said["python"].values()) == {"Refused"}, said
    assert not (tmp_path / "canary").exists()


def _said(path: Path) -> dict[str, Any]:
    work = path.parent / "work"
    work.mkdir()
    with pytest.raises(CheckpointError) as caught:
        read_pickles([path], work, SMALL)
    assert not (work / "another").exists()
    said: dict[str, Any] = json.loads(str(caught.value))
    return said


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("os.kill(os.getpid(), 9)", r"was killed \(SIGKILL\), perhaps because memory ran out"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"crashed \(SIGSEGV\)"),
        ("while True: time.sleep(1)", "took longer than its limit of 0 seconds"),
        ("sys.exit(5)", "ended with exit code 5"),
        ("pass", "gave no report"),
        ('say({"shards": [["../x"]], "left_out": []})', "gave no report"),
        ('say({"shards": [[5]], "left_out": []})', "gave no report"),
        ('say({"shards": 7})', "gave no report"),
        (
            # A system may add variables of its own.
            'say({"error": str(sorted({"HF_TOKEN", "HOME", "OMP_NUM_THREADS", "PATH"}.intersection(os.environ)))})',
            r"^\['OMP_NUM_THREADS'\]$",
        ),
        ('say({"not_started": "no torch"})', "the process that reads its pickle files does not start: no torch$"),
        ('say({"error": "a\\nb" + "x" * 10**6})', r"^a bx+$"),
    ],
)
def test_however_the_process_ends_it_is_one_line(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, signal, sys, time\n"
        "settings = json.loads(sys.argv[1])\n"
        "def say(report): open(settings['folder'] + '/report', 'w').write(json.dumps(report))\n"
        f"{script}\n"
    )
    monkeypatch.setattr(pickleprocess, "_READER", child)
    for name in ("HF_TOKEN", "HOME"):
        monkeypatch.setenv(name, "secret")
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"x")
    (tmp_path / "work").mkdir()
    error = RunError if "not start" in said else CheckpointError
    with pytest.raises(error, match=said) as caught:
        read_pickles([path], tmp_path / "work", Limits(base_s=0 if "sleep" in script else 60))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_the_process_ends_with_the_one_that_started_it() -> None:
    script = (
        "import importlib.util, sys, threading, time\n"
        f"spec = importlib.util.spec_from_file_location('reader', {picklereader.__file__!r})\n"
        "reader = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(reader)\n"
        "threading.Thread(target=reader._end_with_parent, daemon=True).start()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(30) == 1
