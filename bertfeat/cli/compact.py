"""`bertfeat compact`: the next version of a store of many small parts has few."""

from __future__ import annotations

import json

import click


@click.command(name="compact")
@click.argument("store", metavar="STORE")
@click.option("--shard-bytes", metavar="SIZE", help="Size of a shard's parts; by default that of the extraction.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print errors and warnings only.")
def command(store: str, shard_bytes: str | None, as_json: bool, quiet: bool) -> None:
    """Join the small parts of appends: the same rows and vectors, without an encoder.

    Each append leaves at least one part for each level, however small. Readers see the old parts until the new ones are
    whole; then the old ones are removed, and earlier versions with them. Run the same command again to resume.
    """
    from bertfeat.cli.progress import counted
    from bertfeat.cli.summary import result_line, store_summary
    from bertfeat.store.compaction import compact
    from bertfeat.store.reader import open_store

    before = open_store(store)
    made = compact(before, shard_bytes=shard_bytes, progress=False if quiet or as_json else None)
    if as_json:
        click.echo(json.dumps(store_summary(made)))
    elif not quiet:
        counts = [counted(len(opened.manifest.shards), "shard") for opened in (before, made)]
        click.echo(f"{result_line(made, was_complete=False)}; {counts[0]} became {counts[1]}")
