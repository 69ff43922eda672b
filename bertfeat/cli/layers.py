"""`bertfeat layers`: how the vectors of each layer lie in space, and how two models differ."""

from __future__ import annotations

import json
from typing import Any

import click

from bertfeat.cli.options import RUN, GroupedCommand, Option, option, output_options, refuse_given

_WHAT = "What"
_HELP = """Measure the geometry of each layer of STORE: anisotropy, self-similarity of words, norms, effective rank,
intrinsic dimension, CKA and common neighbours of all pairs of layers.

With OTHER, a store of the same corpus from another model (fine-tuned, adapted, with random weights, of another family),
only the rows that both have count, and the same layers of both are compared: CKA, RSA, and the words that moved most.
Written are layers.csv, layers.json, layers.html and layers.png.

\b
Examples:
  bertfeat layers features -o geometry
  bertfeat layers features random_features -o trained_against_random
"""


def _number(flag: str, least: int, default: int, text: str) -> Option:
    kind = click.IntRange(min=least)
    return option(_WHAT, flag, type=kind, metavar="N", default=default, show_default=True, help=text)


@click.command(name="layers", cls=GroupedCommand, help=_HELP, short_help="Measure the geometry of each layer.")
@click.argument("store", metavar="STORE")
@click.argument("other", metavar="[OTHER]", required=False)
@option(RUN, "-o", "--output", required=True, metavar="DIR", help="Folder of the table, the plots and the page.")
@option(RUN, "--overwrite", is_flag=True, help="Replace a comparison that is already there.")
@output_options
@option(_WHAT, "--level", metavar="LEVEL", help="word, token or sentence.  [default: the only one stored]")
@_number("--min-count", 2, 5, "The fewest rows of a word type whose self-similarity is measured.")
@_number("--sample", 50, 2000, "Rows whose neighbours and pairs are compared.")
@_number("--seed", 0, 0, "Seed of the sample.")
def command(
    store: str, other: str | None, output: str, overwrite: bool, as_json: bool, quiet: bool, **settings: Any
) -> None:
    """Measure the geometry of each layer of STORE."""
    from bertfeat.geometry.layerresult import check_layers_folder
    from bertfeat.store.storedescription import StoreDescription

    check_layers_folder(output, overwrite=overwrite)
    if (settings["level"] or StoreDescription.at(store).choose_level(None)) == "sentence":
        refuse_given({"min_count"}, "has no effect at level sentence, where a row is a whole text and no word")
    from bertfeat.geometry.layermeasures import compare_layers
    from bertfeat.reports.drawing import style

    # Without matplotlib nothing can be written: say so before the work.
    with style():
        pass
    found = compare_layers(store, other, **settings, progress=False if quiet or as_json else None)
    found.write(output, overwrite=overwrite)
    if as_json:
        click.echo(json.dumps({"output": output, **found.to_dict()}))
    elif not quiet:
        click.echo(f"{found.table()}\n\n{output}: layers.html, {found.n_rows:,} rows")
