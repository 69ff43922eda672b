"""Processes of rivals, as the benchmark uses them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.speed.peers import PEERS, Task

_ROOT = Path(__file__).parents[2]
# rival -> (variable with the Python of its environment, the file with the requirements of that environment)
ENVIRONMENTS = {
    "flair": ("FLAIR_PYTHON", "requirements-flair.txt"),
    **dict.fromkeys(
        ("onnx_runtime", "openvino_engine", "ctranslate2_engine"), ("ENGINES_PYTHON", "requirements-engines.txt")
    ),
}


class MissingRival(Exception):
    """A rival cannot run here; the message says what it needs."""


class Rival:
    """A rival in a process of its own, with its model loaded.

    Raises:
        MissingRival: Its library is not there, or it cannot do the task.
    """

    def __init__(self, peer: str, task: Task) -> None:
        self.peer = peer
        task = dataclasses.replace(task, settings={**PEERS[peer][1], **task.settings})
        try:
            self._process = _start(python_of(peer))
        except OSError as error:
            raise MissingRival(f"{peer}: {error}{_advice(peer)}") from None
        try:
            answer = self._ask({"do": "load", "peer": peer, "task": dataclasses.asdict(task)})
        except RuntimeError as error:
            self.close()
            raise MissingRival(f"{error}{_advice(peer)}") from None
        self.load_s: float = answer["load_s"]
        self.batches: list[int] = answer["batches"]
        self.versions: dict[str, str] = answer["versions"]
        self.batch = self.batches[len(self.batches) // 2]

    def run(self, corpus: Path, output: Path, *, batch: int | None = None, in_memory: bool = False) -> dict[str, Any]:
        """Encode a corpus to files, or to vectors in memory that are saved afterwards; return the measurements."""
        do = "embed" if in_memory else "run"
        asked = {"do": do, "corpus": str(corpus), "output": str(output), "batch": batch or self.batch}
        return self._ask(asked)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"{self.peer}: its process ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self.peer}: {answer['error']}")
        return answer


def _start(python: str) -> subprocess.Popen[str]:
    path = f"{_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    # The rest keeps the peers' libraries off the network and their progress bars off the screen.
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    return subprocess.Popen(
        [python, "-W", "ignore", "-m", "benchmarks.speed.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": path, **quiet},
    )


def python_of(peer: str) -> str:
    """Return the Python that runs a rival: that of its environment variable, or this one."""
    variable = ENVIRONMENTS.get(_environment(peer), ("", ""))[0]
    return os.environ.get(variable, sys.executable)


def _environment(peer: str) -> str:
    return "flair" if peer == "flair" else PEERS[peer][0]


def _advice(peer: str) -> str:
    if _environment(peer) not in ENVIRONMENTS:
        return ""
    variable, requirements = ENVIRONMENTS[_environment(peer)]
    return f"; make an environment of benchmarks/{requirements} and set {variable} to its python"
