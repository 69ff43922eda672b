"""`bertfeat inspect`: what is in a store, or what a model is and asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click


@click.command(name="inspect")
@click.argument("what", metavar="STORE|MODEL")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(what: str, as_json: bool) -> None:
    """Show what is in a store, or what a model is.

    Of a store: levels, rows, columns, sizes, model and provenance, and how fast it was made. An unfinished store is
    shown with the shards that are done.

    Of a model (a name such as minilm, a folder, or a hub id, which is downloaded first): its family, size and limits,
    how it makes its own sentence embedding, its prompts, and the flags that follow them.
    """
    if _is_model(what):
        from bertfeat.cli.model_summary import model_lines, model_summary
        from bertfeat.encoder.checkpoint import open_checkpoint
        from bertfeat.errors import CheckpointError

        try:
            checkpoint = open_checkpoint(what)
        except CheckpointError as error:
            if os.path.lexists(Path(what).expanduser()):
                raise
            raise CheckpointError(f"{error}; and no store is at {what}") from None
        summary = model_summary(checkpoint)
        click.echo(json.dumps(summary) if as_json else "\n".join(model_lines(summary)))
        return
    from bertfeat.cli.summary import inspect_lines, store_summary
    from bertfeat.store.reader import open_store

    opened = open_store(what, allow_incomplete=True)
    click.echo(json.dumps(store_summary(opened)) if as_json else "\n".join(inspect_lines(opened)))


def _is_model(what: str) -> bool:
    """Return whether the files of a folder, or the lack of a folder, say that a model is meant."""
    from bertfeat.encoder.packaged import packaged_names
    from bertfeat.storage import is_url
    from bertfeat.store.layout import MANIFEST, PRIVATE

    place = Path(what).expanduser()

    def has(*names: str) -> bool:
        return any(os.path.lexists(place / name) for name in names)

    if is_url(what) or has(MANIFEST, PRIVATE):
        return False
    return has("config.json", "modules.json") or not os.path.lexists(place) or what in packaged_names()
