"""The command line. A command is imported when it is called, so that `--help` loads nothing heavy."""

from __future__ import annotations

import gc
import importlib
import os
import sys

import click

from bertfeat._version import __version__
from bertfeat.cli.failures import report_failures

__all__ = ["failures", "main", "options", "run"]

# The first screen: name -> (module and attribute, help). The modules may import heavy things, these tables may not.
_FIRST = {
    "extract": ("extract.extract", "Run an encoder over a corpus and keep its hidden states."),
    "inspect": ("inspect.inspect", "Show what a store, a probe, a sweep, an index or a model is."),
    "verify": ("inspect.verify", "Check the digest of every file of a store."),
    "probe": ("probe.probe", "Fit, score and apply classifiers on the features of a store."),
    "index": ("search.index", "Build, update and measure indexes of a store's vectors."),
    "search": ("search.search", "Find the most similar texts, or words in context."),
    "map": ("export.map_", "Draw the rows of a store: coordinates, neighbors and a page."),
    "export": ("export.export", "Write vectors of a store as files of other tools."),
}
_MORE = {"import": "extract.import_", "serve": "search.serve", "layers": "export.layers", "static": "export.static"}
_MORE |= {"card": "export.card", "compact": "inspect.compact", "models": "inspect.models", "convert": "inspect.convert"}
_MORE |= {"audit": "audit.audit"}
_PLACES = {name: place for name, (place, _) in _FIRST.items()} | _MORE


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the tables."""
        return list(_PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in _PLACES:
            return None
        module, name = _PLACES[cmd_name].split(".")
        command: click.Command = getattr(importlib.import_module(f"bertfeat.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the first commands with their one-line help, and the names of the others, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _FIRST.items()])
        with formatter.section("More"):
            formatter.write_text(f"{', '.join(_MORE)}; see bertfeat COMMAND --help")


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked:
        return
    if ctx.params["verbose"]:
        click.echo(importlib.import_module("bertfeat.cli.inspect").bug_report())
    else:
        click.echo(f"bertfeat, version {__version__}")
    ctx.exit()


# click takes the names of `commands` for the nearest one to a mistyped name.
@click.group(
    cls=_LazyGroup,
    commands=dict.fromkeys(_PLACES),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--verbose", is_flag=True, is_eager=True, help="With --version: what a bug report needs.")
@click.option(
    "-V", "--version", is_flag=True, expose_value=False, callback=_print_version, help="Show the version and exit."
)
def group(verbose: bool) -> None:
    """Run a transformer over your texts once, keep every layer of every token in Parquet, and answer questions from the
    files in seconds.

    \b
    Three jobs:
      hidden states as files that can be trusted          extract, inspect, verify
      which layer or model is good enough for my labels   extract, probe
      search my texts well on this machine                extract, index, search
    """  # noqa: D301
    if verbose:
        raise click.UsageError("--verbose before a command goes with --version; write it after the command's name")


def run() -> None:
    """Run the command line as a process of its own.

    Imports make a million objects and no garbage. Looking for garbage after every 700 new ones takes a fourth of a
    short command's time.
    """
    gc.set_threshold(200_000, 2, 2)
    main()


def main() -> None:
    """Run the command line; exit codes are 0 done, 1 a check found something, 2 user's input, 3 run failed."""
    with report_failures() as outcome:
        if "_BERTFEAT_COMPLETE" in os.environ:
            group(prog_name="bertfeat", standalone_mode=False)
        # Not click's main, which ends with 1 without a word where any pipe or connection is closed.
        with group.make_context("bertfeat", sys.argv[1:], obj=outcome) as context:
            group.invoke(context)
    sys.exit(0)
