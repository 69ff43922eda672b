"""`bertfeat inspect`: what is in a store, a probe, a sweep or an index, or what a model is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from bertfeat.cli.options import GroupedCommand, Printed, prints
from bertfeat.display import facts
from bertfeat.durable.files import os_errors
from bertfeat.errors import CheckpointError, UserError


@click.command(name="inspect", cls=GroupedCommand)
@click.argument("what", metavar="WHAT")
@prints
def inspect(what: str) -> Printed:
    """Show what is in a store, a probe, a sweep or an index, or what a model is.

    WHAT is a folder, which its files identify, the URL of a store, or the name of a model, a folder, a hub id (which is
    downloaded first) or a file of word vectors. What was saved with it is shown; no vectors, weights or indexes are
    loaded. An unfinished store is shown with the shards that are done.
    """
    readers = {"store": _store, "probe": _probe, "index": _index, "sweep": _sweep, "model": _model}
    found = readers[kind := _kind_of(what)](what)
    return Printed({"kind": kind, **found.values}, found.text or facts(found.values))


def _store(path: str) -> Printed:
    from bertfeat.cli.summary import store_summary
    from bertfeat.store.storedescription import StoreDescription

    return Printed(store_summary(StoreDescription.at(path, allow_incomplete=True)))


def _probe(folder: str) -> Printed:
    from bertfeat.probes.probedescription import describe_probe

    document, training = describe_probe(folder)
    values = training.to_dict(document.head, document.params, document.classes.values)
    return Printed({"probe": folder, **values, "n_bytes": document.weights.n_bytes})


@os_errors(UserError)
def _index(path: str) -> Printed:
    from bertfeat.ann.indexfolder import read_description
    from bertfeat.cli.index import index_summary
    from bertfeat.durable.publication import standing
    from bertfeat.storage import local_path

    folder = local_path(path, "an index")
    return Printed(index_summary(folder, read_description(standing(folder))))


def _sweep(folder: str) -> Printed:
    from bertfeat.probes.sweepresult import read_sweep

    found = read_sweep(folder)
    values = {"sweep": folder, **found.to_dict()}
    shown = facts({name: value for name, value in values.items() if name != "rows"})
    return Printed(values, f"{shown}\n\n{found.table()}\n\n{found.best_line()}")


@os_errors(UserError)
def _kind_of(what: str) -> str:
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


def _model(name: str) -> Printed:
    from bertfeat.durable.records import to_values
    from bertfeat.encoder.checkpoint import open_checkpoint
    from bertfeat.encoder.conversion import read_note

    checkpoint, embedding, problem = open_checkpoint(name), None, None
    try:
        if (sentence := checkpoint.sentence_model()) is None:
            problem = "its folder describes none (no modules.json)"
        else:
            embedding = {"description": sentence.describe(), "dim": sentence.dim(checkpoint.hidden_size)}
            embedding |= {"modes": list(sentence.modes), "include_prompt": sentence.include_prompt}
            embedding |= {"tuned_length": sentence.max_length, "sha256": sentence.sha256}
    except CheckpointError as error:
        # The other poolings work without it.
        problem = str(error)
    prompts, note, words = checkpoint.prompts(), read_note(checkpoint.folder), None
    prompt = f" --prompt-name {shlex.quote(prompts.document_name)}" if prompts.document_name else ""
    if checkpoint.static is not None and (words := checkpoint.static.words) is not None:
        problem = "word vectors have none; the mean of the known words is stored"
    of_words = ("layout", "n_words", "n_repeated", "n_left_out", "is_uncased") if words else ()
    values = to_values(checkpoint.info())
    shown = {
        "model": values.pop("name"),
        "folder": str(checkpoint.folder),
        "converted_from": note and " at ".join(filter(None, (note.source, note.revision))),
        **values,
        "model_class": checkpoint.facts.model_class if checkpoint.facts else None,
        "note": checkpoint.family.note,
        "max_length": None if checkpoint.static else checkpoint.max_length,
        "usual_length": None if checkpoint.static else checkpoint.family.usual_length(checkpoint.max_length),
        "is_bfloat16": checkpoint.is_bfloat16,
        "embedding": embedding,
        "embedding_problem": problem,
        "prompts": dict(prompts.texts),
        "default_prompt_name": prompts.default_name,
        "flags": f"--level sentence --pooling {'model' if embedding else 'mean'}{prompt}",
        **{name: getattr(words, name) for name in of_words},
    }
    return Printed(shown)
