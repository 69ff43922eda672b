"""The command line and the pipelines, run in this process, without the seconds that a new process takes to start."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from bertfeat.cli import main
from tests.support.places import ROOT


@dataclass(frozen=True)
class Result:
    """The exit code of a command and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The only JSON value on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


def bertfeat(*arguments: str | Path, stdin: bytes = b"") -> Result:
    """Run `bertfeat ARGUMENTS...`."""
    return _run(["bertfeat", *map(str, arguments)], main, stdin)


def pipeline(name: str, *arguments: object) -> Result:
    """Run `python pipelines/NAME.py ARGUMENTS...`."""
    path = str(ROOT / "pipelines" / f"{name}.py")
    return _run([path, *map(str, arguments)], lambda: runpy.run_path(path, run_name="__main__"), code=0)


def _run(argv: list[str], program: Callable[[], object], stdin: bytes = b"", code: Any = None) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            program()
        except SystemExit as done:
            code = done.code
    assert isinstance(code, int), f"{argv}: ended with {code!r}"
    return Result(code, out.getvalue(), err.getvalue())


def good(*arguments: str | Path, stdin: bytes = b"") -> Result:
    """Run a command that must succeed."""
    result = bertfeat(*arguments, stdin=stdin)
    assert result.code == 0, result.err
    return result


def refused(*arguments: str | Path) -> str:
    """Run a command that must end with exit code 2 and one line; return the line."""
    return _refusal(bertfeat(*arguments))


def pipeline_result(folder: Path, name: str, *arguments: object) -> dict[str, Any]:
    """Run a pipeline that must succeed, with its output in `folder`; return its result.json."""
    done = pipeline(name, *arguments, "--out", folder)
    assert done.code == 0, done.err
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert result["pipeline"] == name
    return result


def pipeline_refused(name: str, *arguments: object) -> str:
    """Run a pipeline that must end with exit code 2 and one line; return the line."""
    return _refusal(pipeline(name, *arguments))


def _refusal(result: Result) -> str:
    assert (result.code, result.out) == (2, ""), (result.code, result.err)
    assert result.err.startswith("bertfeat: ")
    assert result.err.count("\n") == 1, result.err
    return result.err
