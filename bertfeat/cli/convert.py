"""`bertfeat convert`: a model with pickle files becomes a folder of safetensors."""

from __future__ import annotations

import dataclasses
import json

import click


@click.command(name="convert")
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", required=True, metavar="FOLDER", help="The new folder, to use as --model.")
@click.option("--revision", metavar="REV", help="Branch, tag or commit of a hub model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print errors and warnings only.")
def command(model: str, output: str, revision: str | None, as_json: bool, quiet: bool) -> None:
    """Write the weights of a pickle-only model as safetensors.

    MODEL is a folder, or a hub id, whose pickle files are then downloaded. They are read as tensors only, in a process
    with limits on memory, time, files and network. FOLDER gets safetensors, config.json, the tokenizer, and a note with
    the digests of what was read and written (conversion.json). The same command again changes nothing.
    """
    from bertfeat.cli.progress import counted
    from bertfeat.encoder.conversion import convert

    made = convert(model, output, revision=revision)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(made), "folder": str(made.folder)}))
    elif not quiet:
        done = "already converted" if made.was_complete else "converted"
        click.echo(
            f"{made.folder}: {done}; {counted(made.n_tensors, 'tensor')}, {made.n_bytes:,} bytes, "
            f"weights sha256 {made.weights_sha256}"
        )
        if made.missing_limits:
            click.echo(f"not limited on this system: {', '.join(made.missing_limits)}; see docs/models.md", err=True)
        if made.left_out:
            click.echo(f"left out, not tensors: {', '.join(made.left_out)[:500]}", err=True)
