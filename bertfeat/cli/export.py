"""`bertfeat export`: vectors of a store as files of other tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from bertfeat.cli.options import RUN, GroupedCommand, option, output_options

_WHAT = "What"
_HELP = """Write vectors of a store as a file, or a folder of files, of another tool.

\b
google-jsonl            a line per document, as of google's extract_features.py (token, word)
neurox-hdf5             a dataset (layers, words, values) per document, with NeuroX' index (word, token)
structural-probes-hdf5  the same without the index (word, token)
npy                     a folder: vectors.npy, and rows.jsonl with all other columns
word2vec                text: a unique key and its values per line
projector               a folder for the Embedding Projector: vectors.tsv and metadata.tsv

`bertfeat import` reads the first four. The result appears when all of it is written.

\b
Examples:
  bertfeat export features --to npy -o arrays --level sentence
  bertfeat export features --to structural-probes-hdf5 -o train.hdf5 --level word --layers all
  bertfeat export features --to projector -o projector --level word --feature layer_06 --limit 1000
"""


@click.command(name="export", cls=GroupedCommand, help=_HELP, short_help="Write vectors as files of other tools.")
@click.argument("store", metavar="STORE")
@option(RUN, "--to", required=True, metavar="FORMAT", help="One of the formats above.")
@option(RUN, "-o", "--output", required=True, metavar="OUT", help="File or folder to write.")
@option(RUN, "--overwrite", is_flag=True, help="Replace what is already there.")
@output_options
@option(_WHAT, "--level", metavar="LEVEL", help="What a row stands for.  [default: the only one stored]")
@option(_WHAT, "--feature", metavar="NAME", help="Such as layer_11 or concat_last4.  [default: all stored layers]")
@option(_WHAT, "--layers", metavar="LAYERS", help="Layers instead: all, last4, numbers and ranges such as 0,4,-1.")
@option(_WHAT, "--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N documents.")
def command(store: str, output: str, as_json: bool, quiet: bool, **values: Any) -> None:
    """Write vectors of a store as files of another tool."""
    from bertfeat.cli.progress import counted, human_bytes
    from bertfeat.exports.exporting import export

    written = export(store, output, progress=False if quiet or as_json else None, **values)
    if as_json:
        facts = asdict(written)
        click.echo(json.dumps({"output": str(facts.pop("path")), **facts}))
    elif not quiet:
        rows = f"{counted(written.n_rows, f'{written.level} row')} of {counted(written.n_documents, 'document')}"
        without = f"; {counted(written.n_without_vector, 'row')} without a vector" if written.n_without_vector else ""
        click.echo(f"{written.path}: {rows}, {', '.join(written.features)}, {human_bytes(written.n_bytes)}{without}")
