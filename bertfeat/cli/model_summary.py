"""Summary of a model for the command line, as text and as JSON."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from bertfeat.display import printable
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.conversion import NOTE, read_note
from bertfeat.encoder.sentencemodel import Prompts, SentenceModel
from bertfeat.errors import CheckpointError

_NO_MODULES = "its folder describes none (no modules.json)"


def inspect_model(name: str) -> tuple[dict[str, Any], list[str]]:
    """Return what a model is and asks for as JSON values and as lines.

    Raises:
        CheckpointError: There is no model, or it cannot be used.
    """
    try:
        summary = _summary(open_checkpoint(name))
    except CheckpointError as error:
        if os.path.lexists(Path(name).expanduser()):
            raise
        # The words of the model's finder on folders and packages are left out.
        _, knows_hub, reason = str(error).partition(" and the hub ")
        hub = f", and the hub {reason}" if knows_hub else ""
        raise CheckpointError(f"{name}: no such folder or file{hub}") from None
    return summary, _lines(summary)


def _summary(checkpoint: Checkpoint) -> dict[str, Any]:
    sentence: SentenceModel | None = None
    problem: str | None = _NO_MODULES
    try:
        if (sentence := checkpoint.sentence_model()) is not None:
            problem = None
    except CheckpointError as error:
        # The other poolings work without it.
        problem = str(error)
    prompts = checkpoint.prompts()
    static: dict[str, Any] = {}
    if checkpoint.static is not None and (words := checkpoint.static.words) is not None:
        problem = "word vectors have none; the mean of the known words is stored"
        names = ("layout", "n_words", "n_repeated", "n_left_out", "is_uncased")
        static = {name: getattr(words, name) for name in names}
    return {
        "model": checkpoint.name,
        "folder": str(checkpoint.folder),
        "revision": checkpoint.revision,
        "converted_from": _converted_from(checkpoint),
        "family": checkpoint.family.model_type,
        "model_class": checkpoint.facts.model_class if checkpoint.facts else None,
        "note": checkpoint.family.note,
        "n_layers": checkpoint.n_layers,
        "hidden_size": checkpoint.hidden_size,
        "max_length": None if checkpoint.static else checkpoint.max_length,
        "usual_length": None if checkpoint.static else checkpoint.family.usual_length(checkpoint.max_length),
        "tuned_length": sentence.max_length if sentence else None,
        "n_parameters": checkpoint.n_values,
        "is_bfloat16": checkpoint.is_bfloat16,
        "weights_sha256": checkpoint.weights_sha256,
        "tokenizer_sha256": checkpoint.tokenizer_sha256,
        "embedding": _embedding(sentence, checkpoint.hidden_size) if sentence else None,
        "embedding_problem": problem,
        "prompts": dict(prompts.texts),
        "default_prompt_name": prompts.default_name,
        "flags": _flags(sentence, prompts),
        **static,
    }


def _converted_from(checkpoint: Checkpoint) -> str | None:
    """Return what the weights were converted from, by `bertfeat convert`."""
    note = read_note(checkpoint.folder)
    if note is None:
        return None
    commit = f" at {note.revision}" if note.revision else ""
    return printable(f"{note.source}{commit}, {', '.join(note.pickles):.100} (see {NOTE})")


def _embedding(sentence: SentenceModel, hidden_size: int) -> dict[str, Any]:
    return {
        "description": sentence.describe(),
        "dim": sentence.dim(hidden_size),
        "modes": list(sentence.modes),
        "include_prompt": sentence.include_prompt,
        "sha256": sentence.sha256,
    }


def _flags(sentence: SentenceModel | None, prompts: Prompts) -> str:
    name = prompts.document_name
    prompt = f" --prompt-name {shlex.quote(name)}" if name else ""
    return f"--level sentence --pooling {'model' if sentence else 'mean'}{prompt}"


def _lines(summary: dict[str, Any]) -> list[str]:
    revision = f" at {summary['revision']}" if summary["revision"] else ""
    tuned = f", tuned on {summary['tuned_length']:,}" if summary["tuned_length"] else ""
    usual = summary["usual_length"]
    is_shorter = usual is not None and usual < summary["max_length"]
    windows = f", windows of {usual:,} unless --max-length says otherwise" if is_shorter else ""
    kept = "bfloat16, computed as such unless --compute-dtype says otherwise; " if summary["is_bfloat16"] else ""
    embedding = summary["embedding"]
    said = f"{embedding['description']}; {embedding['dim']:,} values" if embedding else summary["embedding_problem"]
    default = summary["default_prompt_name"]
    prompts = [
        f"{name} {text!r}{' (the default)' if name == default else ''}" for name, text in summary["prompts"].items()
    ]
    limit = f"{summary['max_length']:,} tokens" if summary["max_length"] else "none"
    return [
        f"{summary['model']}{revision}: {summary['family']}, {summary['n_parameters']:,} parameters",
        "",
        f"folder     {summary['folder']}",
        *([f"converted  from {summary['converted_from']}"] if summary["converted_from"] else []),
        f"family     {', '.join(filter(None, (summary['family'], summary['model_class'], summary['note'])))}",
        f"size       {summary['n_layers']} layers, {summary['hidden_size']:,} wide",
        *([_words_line(summary)] if "n_words" in summary else []),
        f"limit      {limit}{tuned}{windows}",
        f"weights    {kept}sha256 {summary['weights_sha256']}",
        f"tokenizer  sha256 {summary['tokenizer_sha256']}",
        f"embedding  {said}",
        f"prompts    {', '.join(prompts) or 'none'}",
        f"flags      {summary['flags']}",
    ]


def _words_line(summary: dict[str, Any]) -> str:
    """Return how many words a file of vectors has, and how they are found in text."""
    found = "uncased: text is lower-cased" if summary["is_uncased"] else "cased: words are looked up as they are"
    facts = [f"{summary['n_words']:,} in {summary['layout']}", found]
    facts += [f"{summary['n_repeated']:,} repeated rows are not used"] if summary["n_repeated"] else []
    facts += [f"{summary['n_left_out']:,} are empty or not UTF-8"] if summary["n_left_out"] else []
    return f"words      {', '.join(facts)}"
