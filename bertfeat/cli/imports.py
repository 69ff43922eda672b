"""`bertfeat import`: vectors that another program made become a store."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click

from bertfeat.cli.options import RUN, ByteSize, GroupedCommand, option, output_options, store_options

_VECTORS = "Vectors"
_HELP = """Make a store of vectors that another program made, for probes, sweeps, indexes and reading.

FILE is .npy (rows, or rows by layers) or .parquet (columns of lists of floats; all other columns come along). All
of it is checked before anything is written. Run the same command again to resume. Recipes make a .parquet of ELMo's
.hdf5 and of the .jsonl of google's extract_features.py: python -m bertfeat.pipelines.

--ids says what the rows of a .npy stand for: a .txt with an id per line; a .csv, .tsv, .jsonl, .json or .parquet,
whose columns come along (doc_id, word_index, word, text, label, ...); or a .conll or .conllu, at word level.

\b
Examples:
  bertfeat import vectors.npy -o features --level sentence --ids rows.csv
  bertfeat import words.npy -o features --level word --ids train.conllu
  bertfeat import embeddings.parquet -o features --level sentence --vector-column embedding
"""


@click.command(name="import", cls=GroupedCommand, help=_HELP, short_help="Make a store of vectors from elsewhere.")
@click.argument("file", metavar="FILE")
@option(RUN, "-o", "--output", required=True, metavar="DIR", help="Folder of the store.")
@option(RUN, "--overwrite", is_flag=True, help="Replace a store that is already there.")
@output_options
@option(_VECTORS, "--level", required=True, metavar="NAME", help="What a vector stands for: word or sentence.")
@option(_VECTORS, "--ids", metavar="FILE", help="What the rows stand for: ids, a table, or a CoNLL file.")
@option(
    _VECTORS,
    "--vector-column",
    "vector_columns",
    multiple=True,
    metavar="NAME",
    help="Column of vectors of a table, once per column.  [default: all lists of floats]",
)
@option(
    _VECTORS,
    "--model",
    default="imported",
    show_default=True,
    metavar="NAME",
    help="What made the vectors, for the record; probes and stores of other names do not go together.",
)
@store_options
@option(
    "Store",
    "--shard-bytes",
    type=ByteSize(),
    default="256MB",
    show_default=True,
    help="Size of a shard, the unit of resume.",
)
def command(
    file: str, output: str, level: str, ids: str | None, overwrite: bool, as_json: bool, quiet: bool, **values: Any
) -> None:
    """Make a store of vectors that another program made."""
    from bertfeat.cli.progress import RunLog
    from bertfeat.cli.summary import result_line, store_summary
    from bertfeat.config import ExtractConfig
    from bertfeat.extraction.importing import import_vectors
    from bertfeat.progress import is_watched

    draws = is_watched() and not (quiet or as_json)
    with contextlib.closing(RunLog(ExtractConfig(), draws=draws, verbose=False)) as log:
        store = import_vectors(file, output, level=level, ids=ids, overwrite=overwrite, progress=log, **values)
    if as_json:
        click.echo(json.dumps({**store_summary(store), "was_complete": not log.has_started}))
    elif not quiet:
        click.echo(result_line(store, was_complete=not log.has_started))
