"""`bertfeat models`: the model families that can be run."""

from __future__ import annotations

import json

import click


@click.command(name="models")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def command(as_json: bool) -> None:
    """List the model families that can be run, and how: packed without padding, in batches of equal lengths, or static.

    Static vectors have no encoder: --model takes a file of word2vec, GloVe or fastText, or a folder of model2vec.
    """
    from bertfeat.encoder.families import STATIC, families
    from bertfeat.encoder.packaged import packaged_names

    table = [
        {"model_type": f.model_type, "title": f.title, "path": f.path, "note": f.note} for f in (*families(), STATIC)
    ]
    if as_json:
        click.echo(json.dumps(table))
        return
    width = max(len(row["model_type"]) for row in table)
    for row in table:
        click.echo(
            f"{row['model_type']:<{width}}  {row['path']:<12}  {row['title']}"
            + (f": {row['note']}" if row["note"] else "")
        )
    click.echo(f"\nInstalled model packages: {', '.join(packaged_names())}")
