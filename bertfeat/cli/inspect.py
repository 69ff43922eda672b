"""`bertfeat inspect`: what is in a store, a probe, a sweep or an index, or what a model is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click

from bertfeat.durable.files import kind_of as file_kind
from bertfeat.durable.files import os_errors
from bertfeat.errors import UserError

Inspected = tuple[dict[str, Any], list[str]]


class _Kind(NamedTuple):
    """A kind of thing.

    Attributes:
        name: Its name, in messages and in the JSON.
        inspect: Module and function that return its summary as JSON values and as lines.
    """

    name: str
    inspect: str


_KINDS = (
    _Kind("store", "summary.inspect_store"),
    _Kind("probe", "probe_summary.inspect_probe"),
    _Kind("index", "search_summary.inspect_index"),
    _Kind("sweep", "probe_summary.inspect_sweep"),
    _Kind("model", "model_summary.inspect_model"),
)
_KIND_OF = {kind.name: kind for kind in _KINDS}


@click.command(name="inspect")
@click.argument("what", metavar="WHAT")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(what: str, as_json: bool) -> None:
    """Show what is in a store, a probe, a sweep or an index, or what a model is.

    WHAT is a folder, which its files identify, the URL of a store, or the name of a model, which may be a file of word
    vectors. No vectors, weights or indexes are loaded.

    Of a store: levels, rows, columns, sizes, model and provenance, and how fast it was made. An unfinished store is
    shown with the shards that are done.

    Of a probe: the store, model and settings of its features, its labels, head and scores. Of a sweep: its table. Of an
    index: its store, settings and measurements.

    Of a model (a name such as minilm, a folder, or a hub id, which is downloaded first): its family, size and limits,
    how it makes its own sentence embedding, its prompts, and the flags that follow them.
    """
    show(kind_of(what), what, as_json=as_json)


def show(kind: str, what: str, *, as_json: bool) -> None:
    """Print what a thing of a kind is."""
    module, function = _KIND_OF[kind].inspect.split(".")
    inspect: Callable[[str], Inspected] = getattr(import_module(f"bertfeat.cli.{module}"), function)
    summary, lines = inspect(what)
    click.echo(json.dumps({"kind": kind, **summary}) if as_json else "\n".join(lines))


@os_errors(UserError)
def kind_of(what: str) -> str:
    """Return the kind of a thing, by its files.

    Raises:
        UserError: There is a file or folder, and it is none of them.
    """
    from bertfeat.choices import CorpusFormat
    from bertfeat.durable.placecheck import kind_at, listed
    from bertfeat.durable.publication import standing
    from bertfeat.storage import is_url

    if is_url(what):
        return "store"
    place = standing(Path(what).expanduser())
    if found := kind_at(place):
        return found
    ending = place.suffix.lower().removeprefix(".")
    if ending in {*CorpusFormat} - {CorpusFormat.TXT} and place.is_file():
        raise UserError(f"{what}: is a .{ending} file, not a store; bertfeat extract makes a store of it")
    from bertfeat.encoder.packaged import packaged_names

    if what in packaged_names() or not os.path.lexists(place) or place.is_file():
        return "model"
    there = file_kind(place)
    if place.is_dir():
        names = [entry.name for entry in place.iterdir()]
        there = f"a folder with {listed(names)}" if names else "an empty folder"
    raise UserError(f"{what}: {there}; inspect takes a store, a probe, a sweep, an index or a model")
