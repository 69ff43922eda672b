"""Options of `bertfeat probe fit` and `sweep`, and head parameters from the command line."""

from __future__ import annotations

import json
from typing import Any

import click

from bertfeat.cli.options import ByteSize, Command, text, together
from bertfeat.heads.registry import ROW_HEADS, TAGGERS, check_head

_DATA = "Data"
_HEAD = "Head"
_HEADS = f"{', '.join(ROW_HEADS)}; at word and token level also {' and '.join(TAGGERS)}."

_MEMORY = "Memory that may be used; what does not fit is streamed."
_FIRST = "The first seed."

# Arguments of a fit that are not parameters of its head.
_NAMED = (
    "level",
    "label",
    "labels",
    "feature",
    "features",
    "mix",
    "dev",
    "dev_labels",
    "hold_out",
    "limit",
    "max_memory",
)
_OWN = {name: f"pass --{name.replace('_', '-')} instead" for name in (*_NAMED, "head", "seed", "seeds")}
_OWN |= dict.fromkeys(("store", "progress", "params", "config"), "heads have no such parameter")
_AT_LEAST_1 = {"type": click.IntRange(min=1), "metavar": "N"}

_data_options = together(
    _DATA,
    text("level", "LEVEL", "token, word or sentence.  [default: the only one stored]"),
    text("label", "NAME", "Column with the labels.", default="label"),
    text("dev", "STORE", "Store to choose settings by, extracted like the first one."),
    text("labels", "FILE", "Labels in a .csv, .tsv, .jsonl or .parquet, joined by doc_id and word_index."),
    text("dev_labels", "FILE", "The same for --dev."),
    ("limit", {**_AT_LEAST_1, "help": "Learn from the first N documents."}),
    ("max_memory", {"type": ByteSize(), "help": f"{_MEMORY}  [default: half of the free]"}),
)
_head_options = together(
    _HEAD,
    text("head", "NAME", _HEADS, default="logreg"),
    ("param", {"metavar": "NAME=VALUE", "multiple": True, "help": "Parameter of the head."}),
    text("class_weight", "balanced", "Weight classes inversely to their frequency."),
    text("metric", "NAME", "What dev is judged by: accuracy, macro_f1, entity_f1."),
    ("seeds", {**_AT_LEAST_1, "default": 1, "show_default": True, "help": "Fits of random heads."}),
    ("seed", {"type": click.IntRange(min=0), "metavar": "N", "default": 0, "show_default": True, "help": _FIRST}),
)


def fit_options(command: Command) -> Command:
    """Add the options that fit and sweep share."""
    return _data_options(_head_options(command))


def check_store_and_head(store: str, settings: dict[str, Any]) -> None:
    """Report a missing store, level or head before scikit-learn loads, which takes a second.

    Raises:
        UserError: The store, the level or the head does not exist, or the store is damaged.
    """
    from bertfeat.errors import require
    from bertfeat.store.storedescription import StoreDescription

    require("sklearn")
    StoreDescription.at(store).choose_level(settings["level"])
    check_head(settings["head"])


def head_params(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the parameters of a head out of the values of the options: JSON, lists of it between commas, or words.

    Raises:
        click.UsageError: A parameter has no value, or is given twice.

    Examples:
        >>> head_params({"param": ("C=0.1,1,10", "standardize=false"), "metric": "macro_f1", "class_weight": None})
        {'C': [0.1, 1, 10], 'standardize': False, 'metric': 'macro_f1'}
    """
    params: dict[str, Any] = {}
    for item in settings.pop("param"):
        name, equals, text = item.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not text.strip():
            raise click.UsageError(f"--param {item!r} is not NAME=VALUE", click.get_current_context(silent=True))
        if name in _OWN:
            raise click.UsageError(f"--param {item!r}: {_OWN[name]}", click.get_current_context(silent=True))
        _put(params, name, _value(text.strip()))
    for name in ("class_weight", "metric"):
        if (value := settings.pop(name)) is not None:
            _put(params, name, value)
    return params


def _put(params: dict[str, Any], name: str, value: Any) -> None:
    if name in params:
        raise click.UsageError(f"parameter {name} is given twice", click.get_current_context(silent=True))
    params[name] = value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return [_value(part.strip()) for part in text.split(",")] if "," in text else text


def warn(text: str) -> None:
    """Write a warning to standard error, on one line."""
    click.echo("bertfeat: warning: " + " ".join(text.splitlines()), err=True)
