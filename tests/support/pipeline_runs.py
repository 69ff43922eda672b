"""The pipelines, run in this process."""

from __future__ import annotations

import json
import os
import runpy
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bertfeat.progress import Progress
from tests.support.command_line import Result, run_here
from tests.support.places import ROOT


def run(name: str, *arguments: object) -> Result:
    """Run `python pipelines/NAME.py ARGUMENTS...`."""
    path = str(ROOT / "pipelines" / f"{name}.py")
    return run_here([path, *map(str, arguments)], lambda: runpy.run_path(path, run_name="__main__"), code=0)


def result_of(folder: Path, name: str, *arguments: object) -> dict[str, Any]:
    """Run a pipeline that must succeed, with its output in `folder`; return its result.json."""
    ran = run(name, *arguments, "--output", folder)
    assert ran.code == 0, ran.err
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["pipeline"] == name
    return result


def refusal(name: str, *arguments: object) -> str:
    """Run a pipeline that must end with exit code 2 and one line; return the line."""
    ran = run(name, *arguments)
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err
    assert ran.err.startswith("bertfeat: ")
    return ran.err


class Killed(Exception):
    """The process ends here."""


def kill_at(patch: pytest.MonkeyPatch, step: int, *, by_signal: bool = False) -> None:
    """End the next trainings of this process after a step, by SIGKILL or by an exception."""

    class Killer(Progress):
        def stage(self, text: str, n_done: int = 0, n_total: int | None = None) -> None:
            if n_done == step and by_signal:
                os.kill(os.getpid(), signal.SIGKILL)
            if n_done == step:
                raise Killed

    @contextmanager
    def reporting(_: object) -> Iterator[Progress]:
        yield Killer()

    patch.setattr("bertfeat.pipelines._training.reporting", reporting)


def run_killed(step: int, name: str, *arguments: object) -> None:
    """Run a pipeline in a process that is for it alone, and that SIGKILL ends after a step of its training."""
    import torch

    torch.set_num_threads(1)
    kill_at(pytest.MonkeyPatch(), step, by_signal=True)
    run(name, *arguments)
