"""`bertfeat inspect`: what is in a store, a probe, a sweep or an index, or what a model is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from bertfeat.cli.options import GroupedCommand, Printed, prints
from bertfeat.display import facts
from bertfeat.durable.files import os_errors
from bertfeat.errors import UserError

# The module and the function that return the values of a thing of each kind.
_KINDS = {
    "store": "summary.inspect_store",
    "probe": "inspect.inspect_probe",
    "index": "inspect.inspect_index",
    "sweep": "inspect.inspect_sweep",
    "model": "models.inspect_model",
}


@click.command(name="inspect", cls=GroupedCommand)
@click.argument("what", metavar="WHAT")
@prints
def inspect(what: str) -> Printed:
    """Show what is in a store, a probe, a sweep or an index, or what a model is.

    WHAT is a folder, which its files identify, the URL of a store, or the name of a model, a folder, a hub id (which is
    downloaded first) or a file of word vectors. What was saved with it is shown; no vectors, weights or indexes are
    loaded. An unfinished store is shown with the shards that are done.
    """
    kind = kind_of(what)
    module, function = _KINDS[kind].split(".")
    result = getattr(import_module(f"bertfeat.cli.{module}"), function)(what)
    found = result if isinstance(result, Printed) else Printed(result, facts(result))
    return Printed({"kind": kind, **found.values}, found.text)


def inspect_probe(folder: str) -> dict[str, Any]:
    """Return what a saved probe is as JSON values."""
    from bertfeat.probes.probedescription import describe_probe

    document, training = describe_probe(folder)
    values = training.to_dict(document.head, document.params, document.classes.values)
    return {"probe": folder, **values, "n_bytes": document.weights.n_bytes}


@os_errors(UserError)
def inspect_index(path: str) -> dict[str, Any]:
    """Return the description of an index as JSON values; its other files are not read."""
    from bertfeat.ann.indexfolder import read_description
    from bertfeat.cli.index import index_summary
    from bertfeat.durable.publication import standing
    from bertfeat.storage import local_path

    folder = local_path(path, "an index")
    return index_summary(folder, read_description(standing(folder)))


def inspect_sweep(folder: str) -> Printed:
    """Return what a sweep found as JSON values and as a table."""
    from bertfeat.probes.sweepresult import read_sweep

    found = read_sweep(folder)
    values = {"sweep": folder, **found.to_dict()}
    shown = facts({name: value for name, value in values.items() if name != "rows"})
    return Printed(values, f"{shown}\n\n{found.table()}\n\n{found.best_line()}")


@os_errors(UserError)
def kind_of(what: str) -> str:
    """Return the kind of a thing, by its files."""
    from bertfeat.durable.placecheck import kind_at, listed
    from bertfeat.durable.publication import standing
    from bertfeat.encoder.packaged import packaged_names
    from bertfeat.storage import is_url

    if is_url(what):
        return "store"
    place = standing(Path(what).expanduser())
    if (found := kind_at(place)) or not place.is_dir() or what in packaged_names():
        return found or "model"
    there = f"a folder with {listed([entry.name for entry in place.iterdir()]) or 'nothing'}"
    raise UserError(f"{what}: {there}; inspect takes a store, a probe, a sweep, an index or a model")
