"""Errors as one line on standard error, with --json also as an object, and the exit codes that tell them apart."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from bertfeat.config import flag
from bertfeat.errors import SETTING, BertfeatError, BertfeatWarning, CheckFailed, is_out_of_memory

_INTERRUPTED = 130
RUN_FAILED = 3


@dataclass
class Outcome:
    """The object of click's context: whether the command has `--json`, and its warnings so far, each once."""

    as_json: bool = False
    warned: list[str] = field(default_factory=list)


@contextmanager
def report_failures(command: click.Command | None = None) -> Iterator[Outcome]:
    """Turn errors into one line and an exit code; only unexpected ones print a traceback before.

    Settings become flags in the line; with a `command`, only those that it has as options.

    If the command has `--json`, an error is also one line of JSON on standard output: `{"error": {"kind": ...,
    "message": ..., "path": ..., "row": ..., "settings": [...]}}`. A check that fails has printed its report. Output to
    a closed pipe (`| head`) is not an error.
    """
    outcome = Outcome()
    _replace_closed_streams()
    try:
        with _warnings_as_lines(outcome.warned, command):
            yield outcome
    except BertfeatError as error:
        _fail(with_flags(str(error), command), error.exit_code, error, outcome)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        # Its message is the whole help, of many lines.
        with suppress(OSError):
            error.show()
        _end(error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        _fail(error.format_message() + hint, error.exit_code, "UsageError", outcome)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted; run the same command again to resume", _INTERRUPTED, "Interrupted", outcome)
    except SystemExit as error:
        # click, which runs the recipes, ends with 1 where a pipe is closed.
        if error.code == 1 and isinstance(_drop_broken(), BrokenPipeError):
            sys.exit(0)
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        _fail(_reason(error), RUN_FAILED, error, outcome)


def _reason(error: BaseException) -> str:
    """Return why a run failed: standard output cannot be written, memory, or a bug, whose traceback is printed."""
    if isinstance(error, OSError) and _is_of_a_stream(error):
        if isinstance(error, BrokenPipeError):
            _end(0)
        return f"standard output cannot be written: {(error.strerror or str(error)).lower()}"
    if is_out_of_memory(error):
        return "memory ran out; free some, or raise the limit of the process (ulimit -v)"
    with suppress(OSError):
        traceback.print_exception(error)
    return "this should not have happened; please report the lines above"


@contextmanager
def _warnings_as_lines(warned: list[str], command: click.Command | None) -> Iterator[None]:
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, BertfeatWarning):
                text = with_flags(" ".join(str(message).splitlines()), command)
                if text in warned:
                    return
                warned.append(text)
                line = f"bertfeat: warning: {text}"
                # A bar that is on the screen goes below.
                tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
                tqdm.write(line, file=sys.stderr) if tqdm else click.echo(line, err=True)
            else:
                others(message, category, *where, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", BertfeatWarning)
        yield


def with_flags(message: str, command: click.Command | None = None) -> str:
    """Return the message of an error with flags in place of the settings that it names, if a command has them.

    Examples:
        >>> with_flags("no column 'text'; pass `text_column`"), with_flags("pass `layers='all'`")
        ("no column 'text'; pass --text-column", 'pass --layers all')
        >>> with_flags("pass `overwrite` or `layers`", click.Command("recipe", params=[click.Option(["--layers"])]))
        'pass `overwrite` or --layers'
    """
    options = None if command is None else {name for param in command.params for name in param.opts}

    def as_flag(found: re.Match[str]) -> str:
        name, value = found.groups()
        if options is not None and flag(name) not in options:
            return found[0]
        return " ".join([flag(name), *([] if value in (None, "True") else [shlex.quote(value.strip("'"))])])

    return SETTING.sub(as_flag, message)


def _fail(message: str, code: int, kind: BaseException | str, outcome: Outcome) -> None:
    """Print an error and exit; `kind` is the exception, or the name of its kind in JSON."""
    line = " ".join(message.splitlines())
    if outcome.as_json and not isinstance(kind, CheckFailed):
        name = kind if isinstance(kind, str) else type(kind).__name__
        place = {"path": getattr(kind, "path", None), "row": getattr(kind, "row", None)}
        error = {"kind": name, "message": line, **place, "settings": getattr(kind, "settings", [])}
        with suppress(OSError):
            click.echo(json.dumps({"error": error}, default=str))
    with suppress(OSError):
        click.echo(f"bertfeat: {line}", err=True)
    _end(code)


def _end(code: int) -> None:
    """Exit; Python writes what is left of the output at its end, which must not fail and change the code."""
    _drop_broken()
    sys.exit(code)


def _drop_broken() -> OSError | None:
    """Make a standard stream that cannot be written /dev/null, and return why; None if both can be written."""
    found = None
    for number, stream in enumerate((sys.__stdout__, sys.__stderr__), start=1):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            found = found or error
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return found


def _replace_closed_streams() -> None:
    """Open /dev/null for each closed standard stream: else the next file has its number, and what is printed."""
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115


def _is_of_a_stream(error: OSError) -> bool:
    """Return whether a write to a standard stream failed: all are calls of click.echo, or tqdm's."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].partition(".")[0] in ("click", "tqdm")
