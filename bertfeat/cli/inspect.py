"""`bertfeat inspect`: what is in a store."""

from __future__ import annotations

import json

import click


@click.command(name="inspect")
@click.argument("store", metavar="STORE")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(store: str, as_json: bool) -> None:
    """Show what is in a store: levels, rows, columns, sizes, model and provenance, and how fast it was made.

    An unfinished store is shown with the shards that are done.
    """
    from bertfeat.cli.summary import inspect_lines, store_summary
    from bertfeat.store.reader import open_store

    opened = open_store(store, allow_incomplete=True)
    click.echo(json.dumps(store_summary(opened)) if as_json else "\n".join(inspect_lines(opened)))
