"""`bertfeat models`: the model types of transformers that read text, with a note where one is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click


@click.command(name="models")
@click.argument("model_type", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of all types; with MODEL_TYPE, one object.")
def command(model_type: str | None, as_json: bool) -> None:
    """List the model types of text of the installed transformers, with their class and a note where one is needed.

    Any of them is tried: when a model is loaded, its states are compared with those of transformers, and it is run
    without padding, in batches of equal lengths, or not at all. With MODEL_TYPE, such as `qwen3`, only that type.

    Static vectors have no encoder: --model takes a file of word2vec, GloVe or fastText, or a folder of model2vec.
    """
    from bertfeat.encoder.packaged import packaged_names
    from bertfeat.errors import did_you_mean

    rows = list(_rows())
    if model_type is not None:
        rows = [row for row in rows if row["model_type"] == model_type] or rows
        if len(rows) > 1:
            hint = did_you_mean(model_type, [row["model_type"] for row in rows]) or "`bertfeat models` lists all"
            raise click.UsageError(f"{model_type!r} is not a model type of text of this transformers; {hint}")
    if as_json:
        click.echo(json.dumps(rows if model_type is None else rows[0]))
        return
    width = max(len(row["model_type"]) for row in rows)
    for row in rows:
        click.echo(f"{row['model_type']:<{width}}  " + "; ".join(filter(None, (row["model_class"], row["note"]))))
    if model_type is None:
        click.echo(f"Installed model packages: {', '.join(packaged_names())}")


def _rows() -> Iterator[dict[str, Any]]:
    from bertfeat.encoder.discovery import types_of_text
    from bertfeat.encoder.families import STATIC, family_of

    for model_type, model_class in {**types_of_text(), STATIC.model_type: ""}.items():
        family = family_of(model_type)
        note = f"not run: {family.refusal}" if family.refusal else family.note
        yield {"model_type": model_type, "model_class": model_class, "note": note}
