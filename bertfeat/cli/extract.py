"""`bertfeat extract` and `import`: from text files, or vectors that another program made, to a store of features."""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import asdict
from typing import Any

import click
from click.core import ParameterSource

from bertfeat.choices import Runner
from bertfeat.cli import options
from bertfeat.config import ExtractConfig
from bertfeat.display import facts


@click.command(
    name="extract",
    cls=options.GroupedCommand,
    common="output dry_run append overwrite text_column id_column keep_columns model levels layers pooling device",
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@options.option("Run", "-o", "--output", metavar="STORE", help="Folder of the store.")
@options.switch("Run", "--dry-run", "Estimate rows, tokens, bytes and seconds; write nothing.")
@options.option(
    "Run", "--price", type=click.FloatRange(0), metavar="N", help="With --dry-run: of an hour, for the cost."
)
@options.switch("Run", "--append", "Add INPUT to a finished store; settings are the store's.")
@options.switch("Run", "--overwrite", "Replace a store, or with --append an unfinished append.")
@options.prints
@options.switch("Run", "--progress", "Without a terminal: lines of progress from the start, and not after a minute.")
@options.option("Run", "-v", "--verbose", is_flag=True, help="Print model, device, types and work on stderr.")
@options.corpus_options
@options.model_options
@options.feature_options
@options.length_options
@options.store_options
@options.compute_options
def extract(inputs: tuple[str, ...], output: str | None, append: bool, **values: Any) -> options.Printed:
    """Run an encoder over a corpus once and keep its hidden states as Parquet.

    INPUT is one or more files or globs, or - for standard input: .txt, .jsonl, .json, .csv, .tsv, .parquet, .conll,
    .conllu, .fasta; text formats also as .gz or .zst. A line of .txt is a document. INPUT and STORE may be URLs in an
    object store, s3:// or gs://, and INPUT a file of a hub, hf://datasets/OWNER/NAME/FILE. Run the same command again
    to resume; on a finished store it does nothing.

    \b
    Examples:
      bertfeat extract reviews.csv -o features --text-column body --level sentence --layers -1
      bertfeat extract train.conll -o features --level word --layers last4
      bertfeat extract corpus.txt.gz -o features --model ./my-bert --layers 0,9..12 --dry-run
    """  # noqa: D301
    from bertfeat.corpus import Paths

    context = click.get_current_context()
    dry_run, overwrite, verbose, price = map(values.pop, ("dry_run", "overwrite", "verbose", "price"))
    if price is not None and not math.isfinite(price):
        raise click.UsageError(f"--price {price} is not a price; write a number", context)
    progress = values.pop("progress") or options.watched()
    settings = {name: value for name, value in values.items() if value is not None}
    # An append takes all settings that are not on the command line from the store.
    source = context.get_parameter_source
    given = {name: value for name, value in settings.items() if source(name) is not ParameterSource.DEFAULT}
    if dry_run and append:
        raise click.UsageError("--dry-run does not go with --append", context)
    config = ExtractConfig.from_dict({} if append else settings)
    if dry_run:
        from bertfeat.extraction.estimation import estimate

        found = asdict(estimate(Paths(inputs), config, progress=progress))
        return options.Printed(found) if price is None else _with_cost(found, price)
    options.refuse_given(("price",), "goes with --dry-run; add it")
    if not output:
        said = "no --output" if output is None else "--output ''"
        raise click.UsageError(f"{said}; name the folder of the store: -o STORE", context)
    from bertfeat.cli.summary import RunLog, run_result
    from bertfeat.extraction import appending, run
    from bertfeat.storage import as_path

    before = None
    if append:
        before, config = appending.open_growing(as_path(output), given)
    # Ray prints events of its processes, but standard output is for the result alone.
    aside = contextlib.redirect_stdout(sys.stderr) if config.runner is Runner.RAY else contextlib.nullcontext()
    with aside, contextlib.closing(RunLog(config, draws=progress, verbose=verbose)) as log:
        if append:
            store = run.append(output, Paths(inputs), overwrite=overwrite, progress=log, **given)
        else:
            store = run.extract(Paths(inputs), output, config, overwrite=overwrite, progress=log)
    return run_result(store, log, config, before)


def _with_cost(values: dict[str, Any], price: float) -> options.Printed:
    cost = values["seconds"] / 3600 * price
    shown = f"{cost:,.2f}" if cost >= 0.1 else f"{cost:.2g}"
    text = facts({**values, "cost": f"{shown} at {price:g} per hour"})
    return options.Printed({**values, "cost": cost, "price_per_hour": price}, text)


@click.command(name="import", cls=options.GroupedCommand)
@click.argument("file", metavar="FILE")
@options.writes("STORE", "Folder of the store.")
@options.option("Vectors", "--level", required=True, metavar="LEVEL", help="What a vector stands for: word, sentence.")
@options.value("Vectors", "--ids", "FILE", "What the rows stand for: ids, a table, or a CoNLL file.")
@options.option(
    "Vectors", "--vector-column", "vector_columns", multiple=True, metavar="NAME", help="Column of vectors; or several."
)
@options.value(
    "Vectors", "--model", "NAME", "What made the vectors; probes and stores of others do not fit.", "imported"
)
@options.store_options
def import_(file: str, output: str, **settings: Any) -> options.Printed:
    """Make a store of vectors that another program made, for probes, sweeps, indexes and reading.

    FILE is .npy (rows, or rows by layers) or .parquet (columns of lists of floats; all other columns come along). All
    of it is checked before anything is written. Run the same command again to resume. Recipes make a .parquet of ELMo's
    .hdf5 and of the .jsonl of google's extract_features.py: python -m bertfeat.pipelines.

    --ids says what the rows of a .npy stand for: a .txt with an id per line; a .csv, .tsv, .jsonl, .json or .parquet,
    whose columns come along (doc_id, word_index, word, text, label, ...); or a .conll or .conllu, at word level.

    \b
    Examples:
      bertfeat import vectors.npy -o features --level sentence --ids rows.csv
      bertfeat import embeddings.parquet -o features --level sentence --vector-column embedding
    """  # noqa: D301
    from bertfeat.cli.summary import RunLog, run_result
    from bertfeat.extraction.importing import import_vectors

    with contextlib.closing(RunLog(ExtractConfig(), draws=options.watched())) as log:
        store = import_vectors(file, output, progress=log, **settings)
    return run_result(store, log)
