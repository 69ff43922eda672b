"""`bertfeat models` and `convert`, and the versions that a bug report needs."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import click

from bertfeat._version import __version__
from bertfeat.cli.options import RUN, GroupedCommand, Printed, option, prints, value
from bertfeat.display import facts


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
