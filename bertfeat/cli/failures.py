"""Errors as one line on standard error, and the exit codes that tell them apart."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from bertfeat.errors import BertfeatError

INTERRUPTED = 130


@contextmanager
def report_failures() -> Iterator[None]:
    """Turn the errors that are meant for the user into one line and an exit code; others keep their traceback."""
    try:
        yield
    except BertfeatError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
        _fail(error.format_message() + hint, error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted; run the same command again to go on", INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): no error of ours. Python must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _fail(message: str, code: int) -> None:
    click.echo("bertfeat: " + " ".join(message.splitlines()), err=True)
    sys.exit(code)
