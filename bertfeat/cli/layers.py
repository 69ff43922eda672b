"""`bertfeat layers` and `map`: the vectors of a store in space."""

from __future__ import annotations

from typing import Any

import click

from bertfeat.cli import options
from bertfeat.config import names_in
from bertfeat.errors import require


@click.command(name="layers", cls=options.GroupedCommand)
@click.argument("store", metavar="STORE")
@click.argument("other", metavar="[OTHER]", required=False)
@options.writes("FOLDER", "Folder of the table, the plots and the page.")
@options.value("What", "--level", "LEVEL", "word, token or sentence.  [default: the only one stored]")
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
    from bertfeat.geometry.layerresult import check_layers_folder

    check_layers_folder(output, overwrite=overwrite)
    from bertfeat.geometry.layermeasures import compare_layers

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
@options.value("What", "--level", "LEVEL", "sentence, word or token.  [default: the only one stored]")
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
    from bertfeat.search.storemap import map_store

    kept = None if columns is None else names_in(columns)
    made = map_store(store, output, columns=kept, page=not no_page, progress=options.watched(), **settings).to_dict()
    return {"output": made.pop("path"), **made}
