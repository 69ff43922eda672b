"""`bertfeat map`: the rows of a store in a plane, as Parquet and as a page."""

from __future__ import annotations

import json
from typing import Any

import click

from bertfeat.cli.options import RUN, ByteSize, GroupedCommand, option, output_options

_WHAT, _HOW, _PAGE = "What", "How", "Page"


@click.command(name="map", cls=GroupedCommand)
@click.argument("store", metavar="STORE")
@option(
    RUN,
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Parquet file; the page has its name with .html. Either name does.",
)
@option(_WHAT, "--level", metavar="LEVEL", help="sentence, word or token.  [default: the only one stored]")
@option(_WHAT, "--feature", metavar="NAME", help="Such as layer_11.  [default: the only one, or concat_last4]")
@option(_WHAT, "--word", metavar="WORD", help="Only the rows of this word, in upper or lower case.")
@option(_WHAT, "--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N rows.")
@option(_WHAT, "--sample", type=click.IntRange(min=1), metavar="N", help="Only N random rows.")
@option(_WHAT, "--columns", metavar="A,B", help="Columns of the corpus to keep.  [default: all]")
@option(
    _HOW,
    "--method",
    type=click.Choice(["pca", "umap"]),
    default="pca",
    show_default=True,
    help="umap needs umap-learn.",
)
@option(
    _HOW,
    "--neighbors",
    type=click.IntRange(min=1),
    metavar="N",
    default=10,
    show_default=True,
    help="Nearest rows of each.",
)
@option(
    _HOW,
    "--metric",
    type=click.Choice(["cosine", "l2"]),
    default="cosine",
    show_default=True,
    help="Distance of neighbours, and of UMAP.",
)
@option(_HOW, "--seed", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Random seed.")
@option(_HOW, "--max-memory", type=ByteSize(), default="4GB", show_default=True, help="Of the index of neighbours.")
@option(_PAGE, "--color", metavar="COLUMN", help="Column that gives the colours at first.")
@option(_PAGE, "--no-page", is_flag=True, help="Write the Parquet file only.")
@option(RUN, "--overwrite", is_flag=True, help="Replace files that are already there.")
@output_options
def command(
    store: str, output: str, columns: str | None, no_page: bool, as_json: bool, quiet: bool, **values: Any
) -> None:
    """Draw the rows of a store in a plane: coordinates and neighbours as Parquet, and a page to look at.

    FILE opens in Embedding Atlas and in polars. The page is one file that loads nothing: pan, zoom, hover with text,
    colours by a column, and a search box; of more than 200,000 rows it shows a random sample. --word bank draws the
    senses of one word.
    """
    from bertfeat.cli.progress import counted
    from bertfeat.search.storemap import map_store

    made = map_store(
        store,
        output,
        columns=None if columns is None else [name.strip() for name in columns.split(",") if name.strip()],
        page=not no_page,
        progress=False if quiet or as_json else None,
        **values,
    )
    if as_json:
        facts = made.to_dict()
        click.echo(json.dumps({"output": facts.pop("path"), **facts}))
    elif not quiet:
        shown = "" if made.shown_variance is None else f", {100 * made.shown_variance:.1f} % of the variance"
        sample = f" ({counted(made.n_points, 'random row')})" if made.n_points < made.n_rows else ""
        page = f"; page {made.page}{sample}" if made.page else ""
        left_out = f"; {counted(made.n_left_out, 'row')} without a vector, or special" if made.n_left_out else ""
        rows = counted(made.n_rows, f"{made.level} row")
        click.echo(f"{made.path}: {rows} of {made.feature} by {made.method}{shown}{left_out}{page}")
