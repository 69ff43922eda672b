"""`bertfeat extract`: from text files to a store of features."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from bertfeat.choices import CorpusFormat, Runner
from bertfeat.cli.failures import warned
from bertfeat.cli.options import (
    RUN,
    GroupedCommand,
    compute_options,
    corpus_options,
    feature_options,
    length_options,
    model_options,
    option,
    output_options,
    store_options,
)
from bertfeat.config import ExtractConfig

if TYPE_CHECKING:
    from bertfeat.settings import ExtractSettings
    from bertfeat.store.reader import Store

_FORMATS = ", ".join(f".{name}" for name in CorpusFormat if name is not CorpusFormat.AUTO)
_HELP = f"""Run an encoder over a corpus once and keep its hidden states as Parquet.

INPUT is one or more files or globs, or - for standard input: {_FORMATS}; text formats also as .gz or .zst. A line of
.txt is a document. INPUT and DIR may be URLs in an object store, s3:// or gs://. Run the same command again to resume;
on a finished store it does nothing.

\b
Examples:
  bertfeat extract reviews.csv -o features --text-column body --level sentence --layers -1
  bertfeat extract train.conll -o features --level word --layers last4
  bertfeat extract 's3://corpora/web/*.txt.gz' -o s3://features/web --level sentence
  bertfeat extract dev.tsv -o trial --no-header --text-column 1 --limit 100 --level sentence
  bertfeat extract corpus.txt.gz -o features --model ./my-bert --layers 0,9..12 --dry-run
"""


@click.command(name="extract", cls=GroupedCommand, help=_HELP)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@option(RUN, "-o", "--output", metavar="DIR", help="Folder of the store.")
@option(RUN, "--dry-run", is_flag=True, help="Estimate rows, tokens, bytes and seconds; write nothing.")
@option(RUN, "--append", is_flag=True, help="Add INPUT to a finished store; settings are the store's.")
@option(RUN, "--overwrite", is_flag=True, help="Replace a store, or with --append an unfinished append.")
@output_options
@option(RUN, "--progress", "show_progress", is_flag=True, help="Without a terminal: a line of progress per minute.")
@option(RUN, "-v", "--verbose", is_flag=True, help="Print model, device, types, path and threads on stderr.")
@corpus_options
@model_options
@feature_options
@length_options
@store_options
@compute_options
def command(
    inputs: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    append: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    show_progress: bool,
    verbose: bool,
    **values: Any,
) -> None:
    """Run an encoder over a corpus once and keep its hidden states as Parquet."""
    settings = {name: value for name, value in values.items() if value is not None}
    growing = _growing(output, settings) if append and output else None
    config = growing[1] if growing else ExtractConfig.from_dict(settings)
    watched = show_progress or (False if quiet or as_json else None)
    if dry_run and append:
        raise click.UsageError("--dry-run does not go with --append", click.get_current_context())
    if dry_run:
        _dry_run(inputs, config, as_json=as_json, progress=watched)
        return
    if not output:
        said = "no --output" if output is None else "--output ''"
        raise click.UsageError(f"{said}; name the folder of the store: -o DIR", click.get_current_context())
    from bertfeat.cli.appends import append_entries
    from bertfeat.cli.progress import RunLog
    from bertfeat.cli.summary import result_line, sentence_tip, store_summary
    from bertfeat.corpus import Paths
    from bertfeat.extraction.run import append as append_to
    from bertfeat.extraction.run import extract
    from bertfeat.progress import is_watched

    draws = show_progress or (is_watched() and not (quiet or as_json))
    # Ray prints events of its processes, but standard output is for the result alone.
    aside = contextlib.redirect_stdout(sys.stderr) if config.runner is Runner.RAY else contextlib.nullcontext()
    with aside, contextlib.closing(RunLog(config, draws=draws, verbose=verbose)) as log:
        if append:
            store = append_to(output, Paths(inputs), overwrite=overwrite, progress=log, **_given(settings))
        else:
            store = extract(Paths(inputs), output, config, overwrite=overwrite, progress=log)
    if as_json:
        click.echo(json.dumps({**store_summary(store), "was_complete": not log.has_started, "warnings": warned()}))
    elif not quiet:
        n_before = len(append_entries(growing[0], ())) if growing else None
        n_cached = log.n_cached_documents if config.cache and log.has_started else None
        if not store.is_complete:
            n_done, n = len(store.manifest.shards), len(store.plan.shards)
            click.echo(
                f"{store.path}: share {config.shards} is done; {n - n_done:,} of {n:,} shards are left to others"
            )
            return
        click.echo(result_line(store, was_complete=not log.has_started, n_before=n_before, n_cached=n_cached))
        if log.has_started and not append and (tip := sentence_tip(store)):
            click.echo(tip)


def _given(settings: dict[str, Any]) -> ExtractSettings:
    """Return the settings that are on the command line: an append takes all others from the store."""
    source = click.get_current_context().get_parameter_source
    given = {name: value for name, value in settings.items() if source(name) is not ParameterSource.DEFAULT}
    return cast("ExtractSettings", given)


def _growing(output: str, settings: dict[str, Any]) -> tuple[Store, ExtractConfig]:
    """Open the store at `output` to append to it."""
    from bertfeat.extraction.appending import open_growing
    from bertfeat.storage import as_path

    return open_growing(as_path(output), _given(settings))


def _dry_run(inputs: tuple[str, ...], config: ExtractConfig, *, as_json: bool, progress: bool | None) -> None:
    from bertfeat.cli.summary import estimate_lines
    from bertfeat.corpus import Paths
    from bertfeat.extraction.estimation import estimate

    result = estimate(Paths(inputs), config, progress=progress)
    facts = {**asdict(result), "warnings": warned()}
    click.echo(json.dumps(facts) if as_json else "\n".join(estimate_lines(result)))
