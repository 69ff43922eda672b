"""Kill drill: whatever is written, and at whichever step a process dies, the old version or the new one exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bertfeat.durable import steps
from bertfeat.store.verification import verify
from tests.support.drill import STEPS
from tests.support.places import ROOT
from tests.support.writers import WRITERS, make_inputs, pieces

pytestmark = pytest.mark.usefixtures("no_fsync")
# Of these, an interrupted one is finished, and no call replaces an older one.
RESUMED = ("store", "build")
CASES = [(kind, every) for kind in WRITERS for every in (False, True)]


def marks(kind: str, every: bool) -> list[pytest.MarkDecorator]:
    # A resumed index must compute exactly as the killed process did.
    numeric = [pytest.mark.numeric] if kind in ("index", "updated index", "build") else []
    return [*numeric, pytest.mark.long] if every else numeric


def drilled(passed: list[str], every: bool) -> list[int]:
    """Return the numbers of the steps to die at: all, or every second of the first and last of those alike."""
    alike = [re.sub(r"\d+", "0", name) for name in passed]
    turned = alike[::-1]
    last = {name: len(alike) - turned.index(name) for name in alike}
    ends = [n for n, name in enumerate(alike, 1) if n in (alike.index(name) + 1, last[name])]
    return list(range(1, len(passed) + 1)) if every else ends[::2]


Die = Callable[[str, Path, Path, int], int]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def die() -> Iterator[Die]:
    """Write in a process that dies at the step with a number; return its exit code."""
    script = "import sys; sys.path[:0] = sys.argv[1:]; from tests.support.writers import serve; serve()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def ask(kind: str, root: Path, inputs: Path, point: int) -> int:
            print(json.dumps([kind, str(root), str(inputs), point]), file=server.stdin, flush=True)
            return int(server.stdout.readline())

        yield ask
        server.stdin.close()


@pytest.mark.promise("kill-published")
@pytest.mark.parametrize(("kind", "every"), [pytest.param(*case, marks=marks(*case)) for case in CASES])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_and_the_same_call_finishes(
    kind: str, every: bool, die: Die, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, passed = WRITERS[kind], []
    (tmp_path / "old").mkdir()
    if kind not in RESUMED:
        write(tmp_path / "old", inputs, False)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr(steps, "hook", passed.append)
        write(tmp_path / "new", inputs, True)
    old, new = pieces(tmp_path / "old"), pieces(tmp_path / "new")
    assert new
    assert old != new
    root = tmp_path / "killed"
    for point, name in [*((n, passed[n - 1]) for n in drilled(passed, every)), (len(passed) + 1, None)]:
        shutil.copytree(tmp_path / "old", root)
        assert die(kind, root, inputs, point) == (-signal.SIGKILL if name else 0), name
        found = pieces(root)
        assert found.keys() >= old.keys(), name
        assert all(data in (old.get(piece), new[piece]) for piece, data in found.items()), name
        write(root, inputs, True)
        assert pieces(root) == new, name
        assert not [path for path in root.iterdir() if path.name.endswith((".replaced", ".building"))], name
        if kind == "store":
            assert verify(root / "store").is_good
        shutil.rmtree(root)
    assert {name.rpartition(".")[2] for name in passed} >= {"opened", "written", "synced", "renamed", "durable"}
    assert kind != "store" or set(passed) == STEPS
    assert kind != "build" or passed.count("checkpoint.faiss.durable") > 1
