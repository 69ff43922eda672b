"""The command line, run in this process: the same `main`, without the seconds that a new process takes to start."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click

from bertfeat.cli import group, main


@dataclass(frozen=True)
class Result:
    """The exit code of a command and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The only line on stdout, a JSON value."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


def bertfeat(*arguments: str | Path, stdin: bytes = b"") -> Result:
    """Run `bertfeat ARGUMENTS...`."""
    return run_here(["bertfeat", *map(str, arguments)], main, stdin)


def run_here(argv: list[str], program: Callable[[], object], stdin: bytes = b"", code: Any = None) -> Result:
    """Run a program in this process; `code` is its exit code if it returns."""
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


def refused(*arguments: str | Path, stdin: bytes = b"") -> str:
    """Run a command that must end with exit code 2 and one line; return the line."""
    result = bertfeat(*arguments, stdin=stdin)
    assert result.code == 2, (result.code, result.err)
    if "--json" in arguments:
        assert f"bertfeat: {result.json['error']['message']}\n" == result.err
    else:
        assert result.out == ""
    assert result.err.startswith("bertfeat: ")
    assert result.err.count("\n") == 1, result.err
    return result.err


def commands(
    command: click.Command = group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command, groups too, with the words that call it."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*words, name))


def flags() -> set[str]:
    """Return the flags of all commands."""
    # A command remembers the names of its help flag, which come from the group.
    root = click.Context(group, **group.context_settings)
    params = [param for _, command in commands() for param in command.get_params(click.Context(command, root))]
    return {name for param in params for name in param.opts}


def flags_of(settings: dict[str, Any]) -> list[str]:
    named = {name: value for name, value in settings.items() if name != "inputs"}
    pairs = [("--level" if name == "levels" else "--" + name.replace("_", "-"), named[name]) for name in named]
    return [settings["inputs"], *(f"{flag}={','.join(v) if isinstance(v, list) else v}" for flag, v in pairs)]


def run_cli(*arguments: str) -> tuple[int, str, list[str]]:
    """Run a command; return its exit code, what it prints, and the lines on standard error."""
    done = bertfeat(*arguments)
    return done.code, done.out, done.err.splitlines()
