"""Errors as one line on standard error, with --json also as an object, and the exit codes that tell them apart."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from bertfeat.config import flag
from bertfeat.errors import BertfeatError, BertfeatWarning, CheckFailed

_INTERRUPTED = 130
RUN_FAILED = 3
_QUOTE = "'"
# A setting, perhaps with a value, as messages name it: `text_column`, `pooling='mean'`.
_SETTING = re.compile(r"(?<![^\s(])`([a-z][a-z_]*)(?:=([^`]*))?`(?=[\s,;:).]|$)")


@contextmanager
def report_failures(command: click.Command | None = None) -> Iterator[None]:
    """Turn errors into one line and an exit code; only unexpected ones print a traceback before.

    Settings become flags in the line; with a `command`, only those that it has as options.

    If the command line has `--json`, an error is also one line of JSON on standard output:
    `{"error": {"kind": ..., "message": ..., "path": ..., "row": ...}}`. A check that fails has printed its report.
    """
    try:
        with _warnings_as_lines():
            yield
    except BertfeatError as error:
        _fail(with_flags(str(error), command), error.exit_code, error)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        # Its message is the whole help, of many lines.
        error.show()
        sys.exit(error.exit_code)
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        _fail(error.format_message() + hint, error.exit_code, "UsageError")
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code, error)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted; run the same command again to resume", _INTERRUPTED, "Interrupted")
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        # A bug: the traceback is for the report.
        traceback.print_exc()
        _fail("this should not have happened; please report the lines above", RUN_FAILED, error)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, BertfeatWarning):
                line = f"bertfeat: warning: {' '.join(str(message).splitlines())}"
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
        return flag(name) if value in (None, "True") else f"{flag(name)} {shlex.quote(value.strip(_QUOTE))}"

    return _SETTING.sub(as_flag, message)


def _fail(message: str, code: int, kind: BaseException | str) -> None:
    """Print an error and exit; `kind` is the exception, or the name of its kind in JSON."""
    line = " ".join(message.splitlines())
    if not isinstance(kind, CheckFailed) and "--json" in itertools.takewhile("--".__ne__, sys.argv[1:]):
        name = kind if isinstance(kind, str) else type(kind).__name__
        place = {"path": getattr(kind, "path", None), "row": getattr(kind, "row", None)}
        click.echo(json.dumps({"error": {"kind": name, "message": line, **place}}, default=str))
    click.echo(f"bertfeat: {line}", err=True)
    sys.exit(code)
