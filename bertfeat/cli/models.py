"""`bertfeat models` and `convert`, and what `bertfeat inspect` shows of a model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from bertfeat.cli.options import RUN, GroupedCommand, Printed, option, prints, value
from bertfeat.errors import CheckpointError


@click.command(name="models", cls=GroupedCommand)
@prints
def models() -> Printed:
    """List the model types of text of the installed transformers, with their class and a note where one is needed.

    Any of them is tried: when a model is loaded, its states are compared with those of transformers, and it is run
    without padding, in batches of equal lengths, or not at all.

    Static vectors have no encoder: --model takes a file of word2vec, GloVe or fastText, or a folder of model2vec.
    """
    from bertfeat.encoder.discovery import types_of_text
    from bertfeat.encoder.families import STATIC, family_of
    from bertfeat.encoder.packaged import packaged_names
    from bertfeat.reports.tables import text_table

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
@option(RUN, "-o", "--output", required=True, metavar="FOLDER", help="The new folder, to use as --model.")
@value(RUN, "--revision", "NAME", "Branch, tag or commit of a hub model.")
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


def inspect_model(name: str) -> dict[str, Any]:
    """Return what a model is and asks for as JSON values."""
    from bertfeat.encoder.checkpoint import open_checkpoint
    from bertfeat.encoder.conversion import read_note

    checkpoint, embedding, problem = open_checkpoint(name), None, None
    try:
        if (sentence := checkpoint.sentence_model()) is None:
            problem = "its folder describes none (no modules.json)"
        else:
            embedding = {
                "description": sentence.describe(),
                "dim": sentence.dim(checkpoint.hidden_size),
                "modes": list(sentence.modes),
                "include_prompt": sentence.include_prompt,
                "tuned_length": sentence.max_length,
                "sha256": sentence.sha256,
            }
    except CheckpointError as error:
        # The other poolings work without it.
        problem = str(error)
    prompts, note, words = checkpoint.prompts(), read_note(checkpoint.folder), None
    prompt = f" --prompt-name {shlex.quote(prompts.document_name)}" if prompts.document_name else ""
    if checkpoint.static is not None and (words := checkpoint.static.words) is not None:
        problem = "word vectors have none; the mean of the known words is stored"
    of_words = ("layout", "n_words", "n_repeated", "n_left_out", "is_uncased") if words else ()
    return {
        "model": checkpoint.name,
        "folder": str(checkpoint.folder),
        "revision": checkpoint.revision,
        "converted_from": note and " at ".join(filter(None, (note.source, note.revision))),
        "family": checkpoint.family.model_type,
        "model_class": checkpoint.facts.model_class if checkpoint.facts else None,
        "note": checkpoint.family.note,
        "n_layers": checkpoint.n_layers,
        "hidden_size": checkpoint.hidden_size,
        "max_length": None if checkpoint.static else checkpoint.max_length,
        "usual_length": None if checkpoint.static else checkpoint.family.usual_length(checkpoint.max_length),
        "n_parameters": checkpoint.n_values,
        "is_bfloat16": checkpoint.is_bfloat16,
        "weights_sha256": checkpoint.weights_sha256,
        "tokenizer_sha256": checkpoint.tokenizer_sha256,
        "embedding": embedding,
        "embedding_problem": problem,
        "prompts": dict(prompts.texts),
        "default_prompt_name": prompts.default_name,
        "flags": f"--level sentence --pooling {'model' if embedding else 'mean'}{prompt}",
        **{name: getattr(words, name) for name in of_words},
    }
