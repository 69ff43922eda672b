"""Tables of settings with their defaults, made from the code when the site is built (a hook of mkdocs)."""

from __future__ import annotations

import dataclasses
import inspect
from enum import StrEnum
from typing import Any, get_type_hints

import click

from bertfeat.cli import group
from bertfeat.config import ExtractConfig, flag
from bertfeat.heads.registry import HEADS, head_class


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables in the places of their comments."""
    for name, table in (("settings of an extraction", extraction_table), ("parameters of heads", heads_table)):
        if (place := f"<!-- {name} -->") in markdown:
            markdown = markdown.replace(place, table())
    return markdown


def extraction_table() -> str:
    """Return a row for each field of `ExtractConfig`; the command line says what it is."""
    command = group.get_command(click.Context(group), "extract")
    assert command is not None
    helps = {name: param.help for param in command.params if isinstance(param, click.Option) for name in param.opts}
    kinds = get_type_hints(ExtractConfig)
    rows = []
    for field in dataclasses.fields(ExtractConfig):
        text = " ".join((helps[flag(field.name)] or "").split())
        if isinstance(kind := kinds[field.name], type) and issubclass(kind, StrEnum):
            text += f" One of {', '.join(f'`{choice}`' for choice in kind)}."
        rows.append((f"`{field.name}`", f"`{_shown(field.default)}`", text))
    return _table(("setting", "default", "what it is"), rows)


def heads_table() -> str:
    """Return a row for each parameter, with the heads that have it, by default."""
    found: dict[str, dict[str, list[str]]] = {}
    for head in HEADS:
        for parameter in inspect.signature(head_class(head)).parameters.values():
            # fit_probe and sweep_probes have these as arguments of their own.
            if parameter.name not in ("task", "mix", "seed"):
                found.setdefault(parameter.name, {}).setdefault(_shown(parameter.default), []).append(f"`{head}`")
    rows = [
        (f"`{name}`", "; ".join(f"`{default}`: {', '.join(heads)}" for default, heads in defaults.items()))
        for name, defaults in found.items()
    ]
    return _table(("parameter", "default: heads"), rows)


def _shown(default: object) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "()"
    return str(default)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
