"""Two processes that replace an index or a probe at once: one is refused, or the result is one of the two, complete."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bertfeat
from bertfeat.errors import UserError
from bertfeat.heads.folder import load_probe, save_probe
from bertfeat.heads.registry import make_head
from bertfeat.search.update import update_index
from tests.support.index_stores import contents, documents, tiny_store

pytestmark = pytest.mark.usefixtures("one_thread", "no_fsync")

_STOPPED = """
import os, signal, sys
from bertfeat.cli import main
from bertfeat.durable import steps
def hook(name):
    if name == "index.faiss.written":
        print("stopped", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
steps.hook = hook
main()
"""
# For each line of input, saves the probe in argv[2] under the name argv[1], and prints the outcome.
_SAVING = """
import sys
from pathlib import Path
from bertfeat.errors import BertfeatError
from bertfeat.heads.folder import load_probe, save_probe
probe, extra = load_probe(Path(sys.argv[2]))
print("ready", flush=True)
for line in sys.stdin:
    target, overwrite = line.split()
    try:
        save_probe(probe, Path(target), {"by": sys.argv[1]}, overwrite=overwrite == "True")
        print("saved", flush=True)
    except BertfeatError as error:
        print("refused", error, flush=True)
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory, tiny_folder):
    folder = tmp_path_factory.mktemp("stores")
    return [tiny_store(folder / str(n), tiny_folder, documents(n), levels="sentence,word") for n in (8, 12)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, stores):
    place = tmp_path_factory.mktemp("whole") / "index"
    bertfeat.build_index(stores[1], place, level="word", threads=1).close()
    return contents(place)


def test_an_index_that_another_process_updates_is_refused(tmp_path, stores, whole):
    index = tmp_path / "index"
    bertfeat.build_index(stores[0], index, level="word", threads=1).close()
    command = [sys.executable, "-c", _STOPPED, "index", "update", str(index), str(stores[1].path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as one:
        assert one.stdout.readline() == "stopped\n"
        # Wait until the process has stopped: an earlier signal to continue would be lost.
        os.waitpid(one.pid, os.WUNTRACED)
        with pytest.raises(UserError, match="another process is making this index; wait for it or stop it"):
            update_index(index, stores[1])
        os.kill(one.pid, signal.SIGCONT)
    assert one.returncode == 0
    assert contents(index) == whole
    assert [file.name for file in tmp_path.iterdir()] == ["index"]


def compete(folder: Path, n_rounds: int) -> dict[bool, list[list[str]]]:
    """Let two processes save a probe to the same place at once, `n_rounds` times; return what both report.

    First each refuses to replace a probe, then each replaces one.
    """
    vectors = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    ways, answers = ("first", "second"), {False: [], True: []}
    processes = []
    try:
        for way in ways:
            probe = make_head("centroid").fit(vectors, [way, "other"] * 20)
            save_probe(probe, folder / way, {"by": way})
            command = [sys.executable, "-c", _SAVING, way, str(folder / way)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            processes.append(subprocess.Popen(command, text=True, **pipes))
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
        for overwrite, number in itertools.product(answers, range(n_rounds)):
            place = folder / f"probes-{overwrite}" / str(number)
            if overwrite:
                save_probe(load_probe(folder / "first")[0], place, {"by": "before"})
            for process in processes:
                process.stdin.write(f"{place} {overwrite}\n")
                process.stdin.flush()
            answer = [process.stdout.readline() for process in processes]
            # Loading checks the digests.
            saved_by = load_probe(place)[1]["by"]
            assert saved_by in [way for way, said in zip(ways, answer, strict=True) if said == "saved\n"], answer
            answers[overwrite].append(answer)
        assert [file.name for file in folder.glob("probes-*/*") if file.name.startswith(".")] == []
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return answers


def test_of_two_probes_saved_at_once_one_is_complete(tmp_path):
    answers = compete(tmp_path, 30)[False]
    assert all(sorted(said[:5] for said in answer) == ["refus", "saved"] for answer in answers), answers
