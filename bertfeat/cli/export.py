"""Files that are made of a store: `bertfeat layers`, `map`, `export`, `static` and `card`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bertfeat.cli import options
from bertfeat.config import names_in
from bertfeat.errors import require


@click.command(name="export", cls=options.GroupedCommand)
@click.argument("store", metavar="STORE")
@options.option("Run", "--to", required=True, metavar="FORMAT", help="One of the formats above.")
@options.writes("FILE", "File or folder to write.")
@options.value("What", "--level", "LEVEL", "What a row stands for.  [default: the only one stored]")
@options.value("What", "--feature", "NAME", "Such as layer_11 or concat_last4.  [default: all stored layers]")
@options.value("What", "--layers", "LAYERS", "Layers instead: all, last4, numbers and ranges such as 0,4,-1.")
@options.count("What", "--limit", None, "Only the first N documents.", least=1)
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

    written = asdict(exporting.export(store, output, progress=options.watched(), **settings))
    return {"output": str(written.pop("path")), **written}


@click.command(name="static", cls=options.GroupedCommand)
@click.argument("store", metavar="STORE")
@options.writes("FILE", "File to write: word2vec's text format.")
@options.value("What", "--level", "LEVEL", "word or token.  [default: the only one stored]")
@options.value("What", "--feature", "NAME", "Such as layer_11.  [default: the only one]")
@options.count("What", "--min-count", 1, "Rarer types are left out.", least=1)
@options.switch("What", "--lower", "Count words that differ in upper case as one type.")
def static(store: str, output: str, **settings: Any) -> dict[str, Any]:
    """Write the mean vector of each word type: static vectors that need no download (Bommasani et al. 2020).

    The most frequent types come first. Rows without a vector do not count; types with whitespace, which the format
    cannot hold, are left out and counted. FILE is a model for `bertfeat extract --model`.
    """
    from bertfeat.exports.word_types import write_word_types
    from bertfeat.store.reader import open_store

    written = asdict(write_word_types(open_store(store), output, progress=options.watched(), **settings))
    return {"output": str(written.pop("path")), **written}


@click.command(name="card", cls=options.GroupedCommand)
@click.argument("store", metavar="STORE")
@options.option("Run", "-o", "--output", metavar="FILE", help="File, such as STORE/README.md.  [default: print it]")
@options.switch("Run", "--overwrite", "Replace what is already there.")
@options.prints
@options.value("What", "--license", "NAME", "The license of the texts and the model, such as cc-by-4.0.")
def card(store: str, output: str | None, license: str | None, overwrite: bool) -> options.Printed:  # noqa: A002
    """Write the card of a store: its levels, model, layers and sizes, and how to read it.

    As README.md in the store's folder it makes the folder a data set for `datasets.load_dataset(FOLDER, LEVEL)`, there
    and on a hub.
    """
    from bertfeat.durable.output_check import check_file, check_folder_above
    from bertfeat.durable.publication import publish_bytes
    from bertfeat.exports.card import dataset_card

    if output is None and overwrite:
        raise click.UsageError("--overwrite goes with --output")
    if output is not None:
        check_folder_above(Path(output))
        check_file(Path(output), overwrite=overwrite)
    text = dataset_card(store, license=license)
    if output is None:
        return options.Printed({"store": store, "card": text}, text.removesuffix("\n"))
    publish_bytes(Path(output), text.encode())
    return options.Printed({"store": store, "output": output}, f"{output}: the card of {store}")


@click.command(name="layers", cls=options.GroupedCommand)
@click.argument("store", metavar="STORE")
@click.argument("other", metavar="[OTHER]", required=False)
@options.writes("FOLDER", "Folder of the table, the plots and the page.")
@options.value("What", "--level", "LEVEL", "word, token, span or sentence.  [default: the only one stored]")
@options.count("What", "--min-count", 5, "The fewest rows of a word type whose self-similarity is measured.", least=2)
@options.count("What", "--sample", 2000, "Rows whose neighbors and pairs are compared.", least=50)
@options.count("What", "--seed", 0, "Seed of the sample.")
def layers(store: str, other: str | None, output: str, overwrite: bool, **settings: Any) -> options.Printed:
    """Measure the geometry of each layer of STORE: anisotropy, self-similarity of words, norms, effective rank,
    intrinsic dimension, CKA and common neighbors of all pairs of layers.

    With OTHER, a store of the same corpus from another model (fine-tuned, adapted, with random weights), only the rows
    that both have count, and the same layers of both are compared: CKA, RSA, and the words that moved most. Written are
    layers.csv, layers.json, layers.html and layers.png.

    \b
    Examples:
      bertfeat layers features -o geometry
      bertfeat layers features random_features -o trained_against_random
    """  # noqa: D301
    from bertfeat.layers.result import LAYERS_FOLDER

    LAYERS_FOLDER.check(output, overwrite=overwrite)
    from bertfeat.layers.measures import compare_layers

    require("matplotlib", what="the plots need")
    found = compare_layers(store, other, **settings, progress=options.watched())
    found.write(output, overwrite=overwrite)
    values = {"output": output, **found.to_dict()}
    return options.Printed(values, f"{found.table()}\n\n{output}: layers.html, {found.n_rows:,} rows")


@click.command(
    name="map",
    cls=options.GroupedCommand,
    common="output overwrite level feature word sample columns method color no_page as_json",
)
@click.argument("store", metavar="STORE")
@options.writes("FILE", "Parquet file; the page has its name with .html. Either name does.")
@options.value("What", "--level", "LEVEL", "sentence, span, word or token.  [default: the only one stored]")
@options.value("What", "--feature", "NAME", "Such as layer_11.  [default: the only one, or concat_last4]")
@options.value("What", "--word", "WORD", "Only the rows of this word, in upper or lower case.")
@options.count("What", "--limit", None, "Only the first N rows.", least=1)
@options.count("What", "--sample", None, "Only N random rows.", least=1)
@options.value("What", "--columns", "A,B", "Columns of the corpus to keep.  [default: all]")
@options.choice("How", "--method", ("pca", "umap"), "umap needs umap-learn.")
@options.count("How", "--neighbors", 10, "Nearest rows of each.", least=1)
@options.choice("How", "--metric", ("cosine", "l2"), "Distance of neighbors, and of UMAP.")
@options.count("How", "--seed", 0, "Random seed.")
@options.size("How", "--max-memory", "4GB", "Of the index of neighbors.")
@options.value("Page", "--color", "COLUMN", "Column that gives the colors at first.")
@options.switch("Page", "--no-page", "Write the Parquet file only.")
def map_(store: str, output: str, columns: str | None, no_page: bool, **settings: Any) -> dict[str, Any]:
    """Draw the rows of a store in a plane: coordinates and neighbors as Parquet, and a page to look at.

    FILE opens in Embedding Atlas and in polars. The page is one file that loads nothing: pan, zoom, hover with text,
    colors by a column, and a search box; of more than 200,000 rows it shows a random sample. --word bank draws the
    senses of one word.
    """
    from bertfeat.map.build import map_store

    kept = None if columns is None else names_in(columns)
    made = map_store(store, output, columns=kept, page=not no_page, progress=options.watched(), **settings).to_dict()
    return {"output": made.pop("path"), **made}
