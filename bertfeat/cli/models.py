"""`bertfeat models`: the model types of transformers, those that can be run and why the others cannot."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import click

_COLUMNS = ("model_type", "path", "attention", "pooler")
_WIDTH = 110


@click.command(name="models")
@click.argument("model_type", required=False)
@click.option("--all", "with_all", is_flag=True, help="Also list the types that are not models of text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list of all types; with MODEL_TYPE, one object.")
def command(model_type: str | None, with_all: bool, as_json: bool) -> None:
    """List the model types that can be run, and how; then those that are refused, by reason.

    The columns are the type, the path (packed without padding, or in batches of equal lengths), which tokens a token
    sees, and whether there is a pooler. With MODEL_TYPE, such as `qwen3`, only what is known of that type.

    Static vectors have no encoder: --model takes a file of word2vec, GloVe or fastText, or a folder of model2vec.
    """
    from bertfeat.encoder.packaged import packaged_names

    if with_all and (as_json or model_type is not None):
        what = "MODEL_TYPE is one type" if model_type is not None else "--json has all types"
        raise click.UsageError(f"--all has no effect here: {what}; leave it out", click.get_current_context())
    table = {row["model_type"]: row for row in _rows()}
    if model_type is not None:
        _show_one(model_type, table, as_json)
        return
    if as_json:
        click.echo(json.dumps(list(table.values())))
        return
    for line in (*_supported(table.values()), *_refused(), *_without_text(with_all)):
        click.echo(line)
    click.echo(f"Installed model packages: {', '.join(packaged_names())}")


def _rows() -> Iterator[dict[str, Any]]:
    from bertfeat.encoder.families import STATIC, families
    from bertfeat.encoder.modeltypes import refusal_of, refused_types, types_without_text

    for family in (*families(), STATIC):
        row = {name: getattr(family, name) for name in (*_COLUMNS, "title", "note")}
        needs = "needs a tokenizer.json" if family.slow_tokenizer else ""
        yield {**row, "note": "; ".join(filter(None, (family.note, needs))), "status": "supported", "reason": None}
    for _, types in refused_types():
        for name in types:
            yield {"model_type": name, "status": "refused", "reason": refusal_of(name)}
    for name in types_without_text():
        yield {"model_type": name, "status": "not text", "reason": refusal_of(name)}


def _show_one(model_type: str, table: dict[str, dict[str, Any]], as_json: bool) -> None:
    from bertfeat.encoder.modeltypes import refusal_of
    from bertfeat.errors import did_you_mean

    row = table.get(model_type)
    if row is None:
        reason = refusal_of(model_type)
        if reason is None:
            hint = did_you_mean(model_type, table) or "`bertfeat models --all` lists all types"
            raise click.UsageError(
                f"{model_type!r} is not a model type of the transformers that bertfeat knows; {hint}"
            )
        row = {"model_type": model_type, "status": "refused", "reason": reason}
    if as_json:
        click.echo(json.dumps(row))
    elif row["status"] == "supported":
        click.echo(
            f"{model_type}: supported; {row['title']}, {row['path']}, attention {row['attention']}, "
            f"pooler {row['pooler']}" + (f"; {row['note']}" if row["note"] else "")
        )
    else:
        click.echo(f"{model_type}: not supported: {row['reason']}")


def _supported(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    listed = [row for row in rows if row["status"] == "supported"]
    widths = {name: max(len(row[name]) for row in listed) for name in _COLUMNS}
    for row in listed:
        cells = "  ".join(f"{row[name]:<{width}}" for name, width in widths.items())
        yield f"{cells}  {row['title']}" + (f": {row['note']}" if row["note"] else "")
    yield ""


def _refused() -> Iterator[str]:
    from bertfeat.encoder.modeltypes import refused_types

    for reason, types in refused_types():
        yield f"Refused: {reason}"
        yield from _wrapped(types)


def _without_text(with_all: bool) -> Iterator[str]:
    from bertfeat.encoder.modeltypes import types_without_text

    types = types_without_text()
    if with_all:
        yield f"Not models of text: {len(types)}"
        yield from _wrapped(types)
    else:
        yield f"Not models of text: {len(types)}; --all lists them"
        yield ""


def _wrapped(types: Iterable[str]) -> Iterator[str]:
    yield textwrap.fill(
        ", ".join(types),
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield ""
