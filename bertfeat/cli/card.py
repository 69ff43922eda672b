"""`bertfeat card`: the card of a store, for a hub of data sets."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="card")
@click.argument("store", metavar="STORE")
@click.option("-o", "--output", metavar="FILE", help="File to write, such as STORE/README.md.  [default: print it]")
@click.option("--license", metavar="NAME", help="The licence of the texts and the model, such as cc-by-4.0.")
@click.option("--overwrite", is_flag=True, help="Replace a file that is already there.")
def command(store: str, output: str | None, license: str | None, overwrite: bool) -> None:  # noqa: A002
    """Write the card of a store: its levels, model, layers and sizes, and how to read it.

    As README.md in the store's folder it makes the folder a data set for `datasets.load_dataset(FOLDER, LEVEL)`, there
    and on a hub.
    """
    from bertfeat.durable.placecheck import check_file, check_folder_above
    from bertfeat.durable.publication import publish_bytes
    from bertfeat.exports.datasetcard import dataset_card

    if output is None and overwrite:
        raise click.UsageError("--overwrite goes with --output")
    path = Path(output) if output is not None else None
    if path is not None:
        check_folder_above(path)
        check_file(path, overwrite=overwrite)
    card = dataset_card(store, license=license)
    if path is None:
        click.echo(card, nl=False)
    else:
        publish_bytes(path, card.encode())
