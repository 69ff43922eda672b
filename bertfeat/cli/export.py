"""`bertfeat export`, `static` and `card`: files for other tools and hubs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bertfeat.cli.options import RUN, GroupedCommand, Printed, count, option, prints, switch, value, watched, writes


@click.command(name="export", cls=GroupedCommand)
@click.argument("store", metavar="STORE")
@option(RUN, "--to", required=True, metavar="FORMAT", help="One of the formats above.")
@writes("FILE", "File or folder to write.")
@value("What", "--level", "LEVEL", "What a row stands for.  [default: the only one stored]")
@value("What", "--feature", "NAME", "Such as layer_11 or concat_last4.  [default: all stored layers]")
@value("What", "--layers", "LAYERS", "Layers instead: all, last4, numbers and ranges such as 0,4,-1.")
@count("What", "--limit", None, "Only the first N documents.", least=1)
def export(store: str, output: str, **settings: Any) -> dict[str, Any]:
    """Write vectors of a store as a file, or a folder of files, of another tool.

    \b
    google-jsonl            a line per document, as of google's extract_features.py (token, word)
    neurox-hdf5             a dataset (layers, words, values) per document, with NeuroX' index (word, token)
    structural-probes-hdf5  the same without the index (word, token)
    npy                     a folder: vectors.npy, and rows.jsonl with all other columns
    word2vec                text: a unique key and its values per line
    projector               a folder for the Embedding Projector: vectors.tsv and metadata.tsv

    `bertfeat import` reads npy; recipes read the first three. The result appears when all of it is written.

    \b
    Examples:
      bertfeat export features --to npy -o arrays --level sentence
      bertfeat export features --to structural-probes-hdf5 -o train.hdf5 --level word --layers all
    """  # noqa: D301
    from bertfeat.exports import exporting

    written = asdict(exporting.export(store, output, progress=watched(), **settings))
    return {"output": str(written.pop("path")), **written}


@click.command(name="static", cls=GroupedCommand)
@click.argument("store", metavar="STORE")
@writes("FILE", "File to write: word2vec's text format.")
@value("What", "--level", "LEVEL", "word or token.  [default: the only one stored]")
@value("What", "--feature", "NAME", "Such as layer_11.  [default: the only one]")
@count("What", "--min-count", 1, "Rarer types are left out.", least=1)
@switch("What", "--lower", "Count words that differ in upper case as one type.")
def static(store: str, output: str, **settings: Any) -> dict[str, Any]:
    """Write the mean vector of each word type: static vectors that need no download (Bommasani et al. 2020).

    The most frequent types come first. Rows without a vector do not count; types with whitespace, which the format
    cannot hold, are left out and counted. FILE is a model for `bertfeat extract --model`.
    """
    from bertfeat.exports.wordtypes import write_word_types
    from bertfeat.store.reader import open_store

    written = asdict(write_word_types(open_store(store), output, progress=watched(), **settings))
    return {"output": str(written.pop("path")), **written}


@click.command(name="card", cls=GroupedCommand)
@click.argument("store", metavar="STORE")
@option(RUN, "-o", "--output", metavar="FILE", help="File to write, such as STORE/README.md.  [default: print it]")
@switch(RUN, "--overwrite", "Replace what is already there.")
@prints
@value("What", "--license", "NAME", "The license of the texts and the model, such as cc-by-4.0.")
def card(store: str, output: str | None, license: str | None, overwrite: bool) -> Printed:  # noqa: A002
    """Write the card of a store: its levels, model, layers and sizes, and how to read it.

    As README.md in the store's folder it makes the folder a data set for `datasets.load_dataset(FOLDER, LEVEL)`, there
    and on a hub.
    """
    from bertfeat.durable.placecheck import check_file, check_folder_above
    from bertfeat.durable.publication import publish_bytes
    from bertfeat.exports.datasetcard import dataset_card

    if output is None and overwrite:
        raise click.UsageError("--overwrite goes with --output")
    if output is not None:
        check_folder_above(Path(output))
        check_file(Path(output), overwrite=overwrite)
    text = dataset_card(store, license=license)
    if output is None:
        return Printed({"store": store, "card": text}, text.removesuffix("\n"))
    publish_bytes(Path(output), text.encode())
    return Printed({"store": store, "output": output}, f"{output}: the card of {store}")
