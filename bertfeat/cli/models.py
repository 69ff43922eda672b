"""`bertfeat models`: the model families that can be run."""

from __future__ import annotations

import json

import click


@click.command(name="models")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def command(as_json: bool) -> None:
    """List the model families that can be run, and how: packed without padding, or in batches of equal lengths."""
    from bertfeat.encoder.families import families
    from bertfeat.encoder.packaged import packaged_names

    table = [{"model_type": f.model_type, "title": f.title, "path": f.path, "note": f.note} for f in families()]
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
