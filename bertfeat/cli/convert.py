"""`bertfeat convert`: a model with pickle files becomes a folder of safetensors."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="convert")
@click.argument("model", metavar="MODEL")
@click.option("-o", "--output", required=True, metavar="FOLDER", help="The new folder, to use as --model.")
@click.option("--revision", metavar="REV", help="Branch, tag or commit of a hub model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Print errors and warnings only.")
def command(model: str, output: str, revision: str | None, as_json: bool, quiet: bool) -> None:
    """Write the weights of a pickle-only model as safetensors.

    MODEL is a folder, or a hub id, whose pickle files are then downloaded. They are read as tensors only, and no code
    in them runs. FOLDER gets safetensors, config.json, the tokenizer, and a note with the digests of what was read and
    written (conversion.json). The same command again changes nothing.
    """
    from bertfeat.cli.progress import counted
    from bertfeat.display import printable
    from bertfeat.durable.records import encode, to_values
    from bertfeat.encoder.conversion import convert, read_note

    before = read_note(Path(output).expanduser())
    made = convert(model, output, revision=revision)
    if as_json:
        click.echo(encode({**to_values(made), "folder": output, "was_complete": before is not None}).decode())
    elif not quiet:
        done = "converted" if before is None else "already converted"
        click.echo(
            f"{output}: {done}; {counted(made.n_tensors, 'tensor')}, {made.n_bytes:,} bytes, "
            f"weights sha256 {made.weights_sha256}"
        )
        if made.left_out:
            click.echo(f"left out, not tensors: {printable(', '.join(made.left_out))[:500]}", err=True)
