"""`bertfeat import`: vectors that another program made become a store."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from bertfeat.cli.options import GroupedCommand, Printed, option, store_options, value, watched, writes


@click.command(name="import", cls=GroupedCommand)
@click.argument("file", metavar="FILE")
@writes("STORE", "Folder of the store.")
@option("Vectors", "--level", required=True, metavar="LEVEL", help="What a vector stands for: word or sentence.")
@value("Vectors", "--ids", "FILE", "What the rows stand for: ids, a table, or a CoNLL file.")
@option(
    "Vectors", "--vector-column", "vector_columns", multiple=True, metavar="NAME", help="Column of vectors; or several."
)
@value("Vectors", "--model", "NAME", "What made the vectors; probes and stores of other names do not fit.", "imported")
@store_options
def import_(file: str, output: str, **settings: Any) -> Printed:
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
    from bertfeat.config import ExtractConfig
    from bertfeat.extraction.importing import import_vectors

    with contextlib.closing(RunLog(ExtractConfig(), draws=watched())) as log:
        store = import_vectors(file, output, progress=log, **settings)
    return run_result(store, log)
