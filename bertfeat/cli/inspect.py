"""`bertfeat inspect`, `verify`, `compact`, `models` and `convert`: what is there, and whether it is whole."""

from __future__ import annotations

import os
import platform
import re
import shlex
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import click

from bertfeat._version import __version__
from bertfeat.cli.options import GroupedCommand, Printed, count, option, prints, refuse_given, switch, value, watched
from bertfeat.display import counted, facts
from bertfeat.durable.files import os_errors
from bertfeat.errors import BertfeatError, CheckFailed, CheckpointError, UserError


@click.command(name="inspect", cls=GroupedCommand)
@click.argument("what", metavar="WHAT")
@switch("Run", "--methods", "Of a store: a paragraph for a paper, and BibTeX entries.", "as_methods")
@prints
def inspect(what: str, as_methods: bool) -> Printed:
    """Show what is in a store, a probe, a sweep or an index, or what a model is.

    WHAT is a folder, which its files identify, the URL of a store, or the name of a model, a folder, a hub id (which is
    downloaded first) or a file of word vectors. What was saved with it is shown; no vectors, weights or indexes are
    loaded. An unfinished store is shown with the shards that are done.
    """
    readers = {"store": _store, "probe": _probe, "index": _index, "sweep": _sweep, "model": _model}
    kind = _kind_of(what)
    if as_methods:
        if kind != "store":
            raise UserError(f"{what}: a {kind}; --methods takes a store")
        from bertfeat.exports.methods import methods

        paragraph, bibtex = methods(what)
        return Printed({"kind": kind, "methods": paragraph, "bibtex": bibtex}, f"{paragraph}\n\n{bibtex}")
    found = readers[kind](what)
    return Printed({"kind": kind, **found.values}, found.text or facts(found.values))


def _store(path: str) -> Printed:
    from bertfeat.cli.summary import store_summary
    from bertfeat.store.description import StoreDescription

    return Printed(store_summary(StoreDescription.at(path, allow_incomplete=True)))


def _probe(folder: str) -> Printed:
    from bertfeat.probes.description import describe_probe

    document, training = describe_probe(folder)
    values = training.to_dict(document.head, document.params, document.classes.values)
    return Printed({"probe": folder, **values, "n_bytes": document.weights.n_bytes})


@os_errors(UserError)
def _index(path: str) -> Printed:
    from bertfeat.ann.folder import read_description
    from bertfeat.cli.search import index_summary
    from bertfeat.durable.publication import standing
    from bertfeat.storage import local_path

    folder = local_path(path, "an index")
    return Printed(index_summary(folder, read_description(standing(folder))))


def _sweep(folder: str) -> Printed:
    from bertfeat.probes.sweep import read_sweep

    found = read_sweep(folder)
    values = {"sweep": folder, **found.to_dict()}
    shown = facts({name: value for name, value in values.items() if name != "rows"})
    return Printed(values, f"{shown}\n\n{found.table()}\n\n{found.best_line()}")


@os_errors(UserError)
def _kind_of(what: str) -> str:
    """Return the kind of a thing, by its files."""
    from bertfeat.durable.output_check import kind_at, listed
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


@click.command(name="verify", cls=GroupedCommand)
@click.argument("store", metavar="STORE")
@switch("Run", "--deep", "Also encode some documents of the inputs again and compare.")
@count("Run", "--documents", 16, "How many, with --deep.", least=1)
@option("Run", "--input", "inputs", multiple=True, metavar="FILE", help="Where the inputs are now, with --deep.")
@prints
def verify(store: str, deep: bool, documents: int, inputs: tuple[str, ...]) -> Printed:
    """Check the digest of every file of a store, and that its manifest, plans and receipts agree.

    If something is wrong, the exit code is 1 and each bad file is named. The bad shards are marked in the store, and
    the same extract command does only these again. Nothing else is written; the store may be read-only.
    """
    if not deep:
        refuse_given(("documents", "inputs"), "goes with --deep; add it")
    from bertfeat.store import verification
    from bertfeat.store.description import StoreDescription

    if deep:
        StoreDescription.at(store).require_model("--deep", "leave it out to check the digests")
    report = verification.verify(store, progress=watched())
    counts: dict[str, Any] = {"n_parts": report.n_parts, "n_rows": report.n_rows, "n_bytes": report.n_bytes}
    remedy = "encoded again they differ: other versions, another machine, or an edited store"
    if not report.is_good:
        try:
            shards = verification.mark_for_redoing(store, report)
            what = counted(len(shards), "shard") if shards else "what is missing or wrong"
            remedy = f"run the command that made it, or append the same inputs, again to redo {what}"
        except BertfeatError as error:
            remedy = f"not marked for redoing: {error}"
    elif deep:
        from bertfeat.corpus import Paths
        from bertfeat.extraction.deep_check import recheck

        report = recheck(store, Paths(inputs) or None, n_documents=documents)
        counts["n_rows_encoded_again"] = report.n_rows
    problems = [{"shard": p.shard, "part": p.part, "reason": p.reason} for p in report.problems]
    values = {"good": report.is_good, "problems": problems, "n_rows_encoded_again": None, **counts}
    if report.is_good:
        return Printed(values, f"{store}: good\n{facts(counts)}")
    failure = CheckFailed(f"{store}: {counted(len(problems), 'problem')}; {remedy}")
    return Printed(values, "\n".join(map(str, report.problems)), failure)


@click.command(name="compact", cls=GroupedCommand)
@click.argument("store", metavar="STORE")
@value("Run", "--shard-bytes", "SIZE", "Size of a shard's parts; by default that of the extraction.")
@prints
def compact(store: str, shard_bytes: str | None) -> Printed:
    """Join the small parts of appends: the same rows and vectors, without an encoder.

    Each append leaves at least one part for each level, however small. Readers see the old parts until the new ones are
    whole; then the old ones are removed, and earlier versions with them. Run the same command again to resume.
    """
    from bertfeat.cli.summary import run_text, store_summary
    from bertfeat.store import compaction
    from bertfeat.store.reader import open_store

    before = open_store(store)
    made = compaction.compact(before, shard_bytes=shard_bytes, progress=watched())
    result = " became ".join(counted(len(one.manifest.shards), "shard") for one in (before, made))
    return Printed(summary := store_summary(made), run_text(summary, result))


@click.command(name="models", cls=GroupedCommand)
@prints
def models() -> Printed:
    """List the model types of text of the installed transformers, with their class and a note where one is needed.

    Any of them is tried: when a model is loaded, its states are compared with those of transformers, and it is run
    without padding, in batches of equal lengths, or not at all.

    Static vectors have no encoder: --model takes a file of word2vec, GloVe or fastText, or a folder of model2vec.
    """
    from bertfeat.encoder.entry_points import types_of_text
    from bertfeat.encoder.families import STATIC, family_of
    from bertfeat.encoder.packaged import packaged_names
    from bertfeat.plots.tables import text_table

    rows = []
    for model_type, model_class in {**types_of_text(), STATIC.model_type: ""}.items():
        family = family_of(model_type)
        note = f"not run: {family.refusal}" if family.refusal else family.note
        rows.append({"model_type": model_type, "model_class": model_class, "note": note})
    packages = list(packaged_names())
    table = text_table(["model type", "class", "note"], [list(row.values()) for row in rows])
    return Printed({"types": rows, "packages": packages}, f"{table}\n\npackages: {', '.join(packages)}")


@click.command(name="convert", cls=GroupedCommand)
@click.argument("model", metavar="MODEL")
@option("Run", "-o", "--output", required=True, metavar="FOLDER", help="The new folder, to use as --model.")
@value("Run", "--revision", "NAME", "Branch, tag or commit of a hub model.")
@prints
def convert(model: str, output: str, revision: str | None) -> dict[str, Any]:
    """Write the weights of a pickle-only model as safetensors.

    MODEL is a folder, or a hub id, whose pickle files are then downloaded. They are read as tensors only, and no code
    in them runs. FOLDER gets safetensors, config.json, the tokenizer, and a note with the digests of what was read and
    written (conversion.json). The same command again changes nothing.
    """
    from bertfeat.durable.records import to_values
    from bertfeat.encoder import conversion

    before = conversion.read_note(Path(output).expanduser())
    made = conversion.convert(model, output, revision=revision)
    return {"output": output, "was_complete": before is not None, **to_values(made)}


def bug_report() -> str:
    """Return the versions of bertfeat, Python and every dependency, by extra, and what computes."""
    import torch

    from bertfeat.devices import resolve_device
    from bertfeat.memory import free_memory

    values: dict[str, Any] = {
        "bertfeat": __version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()}), {platform.platform()}",
        "cores": f"{os.cpu_count()} ({torch.backends.cpu.get_cpu_capability()})",
        "threads": torch.get_num_threads(),
        "free memory bytes": free_memory(),
        "devices": [
            f"{one} ({torch.cuda.get_device_name(one)})" if one.type == "cuda" else str(one)
            for one in resolve_device("auto")
        ],
    }
    for requirement in requires("bertfeat") or ():
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if extra is None or extra[1] not in ("dev", "docs", "web"):
            name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            values.setdefault(f"extra {extra[1]}" if extra else "requires", []).append(_installed(name))
    return facts(values)


def _installed(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} (not installed)"
