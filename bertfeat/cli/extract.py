"""`bertfeat extract`: from text files to a store of features."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from typing import Any

import click
from click.core import ParameterSource

from bertfeat.choices import Runner
from bertfeat.cli import options
from bertfeat.config import ExtractConfig


@click.command(name="extract", cls=options.GroupedCommand)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@options.option("Run", "-o", "--output", metavar="STORE", help="Folder of the store.")
@options.switch("Run", "--dry-run", "Estimate rows, tokens, bytes and seconds; write nothing.")
@options.switch("Run", "--append", "Add INPUT to a finished store; settings are the store's.")
@options.switch("Run", "--overwrite", "Replace a store, or with --append an unfinished append.")
@options.prints
@options.option(
    "Run", "--progress", "show_progress", is_flag=True, help="Without a terminal: a line of progress per minute."
)
@options.option("Run", "-v", "--verbose", is_flag=True, help="Print model, device, types and work on stderr.")
@options.corpus_options
@options.model_options
@options.feature_options
@options.length_options
@options.store_options
@options.compute_options
def extract(
    inputs: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    append: bool,
    overwrite: bool,
    show_progress: bool,
    verbose: bool,
    **values: Any,
) -> options.Printed:
    """Run an encoder over a corpus once and keep its hidden states as Parquet.

    INPUT is one or more files or globs, or - for standard input: .txt, .jsonl, .json, .csv, .tsv, .parquet, .conll,
    .conllu; text formats also as .gz or .zst. A line of .txt is a document. INPUT and STORE may be URLs in an object
    store, s3:// or gs://. Run the same command again to resume; on a finished store it does nothing.

    \b
    Examples:
      bertfeat extract reviews.csv -o features --text-column body --level sentence --layers -1
      bertfeat extract train.conll -o features --level word --layers last4
      bertfeat extract corpus.txt.gz -o features --model ./my-bert --layers 0,9..12 --dry-run
    """  # noqa: D301
    from bertfeat.corpus import Paths

    settings = {name: value for name, value in values.items() if value is not None}
    if dry_run and append:
        raise click.UsageError("--dry-run does not go with --append", click.get_current_context())
    before = None
    if append and output:
        from bertfeat.extraction.appending import open_growing
        from bertfeat.storage import as_path

        before, config = open_growing(as_path(output), _given(settings))
    else:
        config = ExtractConfig.from_dict(settings)
    if dry_run:
        from bertfeat.extraction.estimation import estimate

        return options.Printed(asdict(estimate(Paths(inputs), config, progress=show_progress or options.watched())))
    if not output:
        said = "no --output" if output is None else "--output ''"
        raise click.UsageError(f"{said}; name the folder of the store: -o STORE", click.get_current_context())
    from bertfeat.cli.summary import RunLog, run_result
    from bertfeat.extraction import run

    # Ray prints events of its processes, but standard output is for the result alone.
    aside = contextlib.redirect_stdout(sys.stderr) if config.runner is Runner.RAY else contextlib.nullcontext()
    with aside, contextlib.closing(RunLog(config, draws=show_progress or options.watched(), verbose=verbose)) as log:
        if append:
            store = run.append(output, Paths(inputs), overwrite=overwrite, progress=log, **_given(settings))
        else:
            store = run.extract(Paths(inputs), output, config, overwrite=overwrite, progress=log)
    return run_result(store, log, config, before)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that are on the command line: an append takes all others from the store."""
    source = click.get_current_context().get_parameter_source
    return {name: value for name, value in settings.items() if source(name) is not ParameterSource.DEFAULT}
