"""What the commands of `bertfeat probe` share: the options of a fit, and head parameters from the command line."""

from __future__ import annotations

import json
from typing import Any

import click

from bertfeat.cli.options import ByteSize, Command, option

RUN = "Run"
_DATA = "Data"
_HEAD = "Head"
_HEADS = "logreg, svm, ridge, centroid, knn, mlp; at word and token level also linear and bilstm."

# What a fit is told beside the parameters of its head.
_NAMED = ("level", "label", "labels", "feature", "features", "mix", "dev", "dev_labels", "limit", "max_memory")
_OWN = {name: f"pass --{name.replace('_', '-')} instead" for name in (*_NAMED, "head", "seed", "seeds")}
_OWN |= dict.fromkeys(("store", "progress"), "heads have no such parameter")
_AT_LEAST_0, _AT_LEAST_1 = click.IntRange(min=0), click.IntRange(min=1)

_OPTIONS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    (_DATA, ("--level",), {"metavar": "LEVEL", "default": "sentence", "help": "token, word or sentence."}),
    (_DATA, ("--label",), {"metavar": "NAME", "default": "label", "help": "Column with the labels."}),
    (_DATA, ("--dev",), {"metavar": "STORE", "help": "Store to choose settings by, extracted like the first one."}),
    (
        _DATA,
        ("--labels",),
        {"metavar": "FILE", "help": "Labels in a .csv, .tsv, .jsonl or .parquet, joined by doc_id and word_index."},
    ),
    (_DATA, ("--dev-labels",), {"metavar": "FILE", "help": "The same for --dev."}),
    (_DATA, ("--limit",), {"type": _AT_LEAST_1, "metavar": "N", "help": "Learn from the first N documents."}),
    (
        _DATA,
        ("--max-memory",),
        {
            "type": ByteSize(),
            "help": "Memory that may be used; what does not fit is streamed.  [default: half of the free]",
        },
    ),
    (_HEAD, ("--head",), {"metavar": "NAME", "default": "logreg", "help": _HEADS}),
    (_HEAD, ("--param", "params"), {"metavar": "NAME=VALUE", "multiple": True, "help": "Parameter of the head."}),
    (_HEAD, ("--class-weight",), {"metavar": "balanced", "help": "Have classes count alike."}),
    (_HEAD, ("--metric",), {"metavar": "NAME", "help": "What dev is judged by: accuracy, macro_f1, entity_f1."}),
    (
        _HEAD,
        ("--seeds",),
        {"type": _AT_LEAST_1, "metavar": "N", "default": 1, "help": "Fits of random heads."},
    ),
    (_HEAD, ("--seed",), {"type": click.IntRange(min=0), "metavar": "N", "default": 0, "help": "The first seed."}),
)


def fit_options(command: Command) -> Command:
    """Add the options that a fit and a sweep have in common."""
    for heading, names, attributes in reversed(_OPTIONS):
        shown = {"show_default": True} if "default" in attributes else {}
        command = option(heading, *names, **attributes, **shown)(command)
    return command


def output_options(command: Command) -> Command:
    """Add --json and --quiet."""
    command = option(RUN, "--quiet", is_flag=True, help="No progress and no summary.")(command)
    return option(RUN, "--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(command)


def head_params(given: tuple[str, ...], **named: Any) -> dict[str, Any]:
    """Return a head's parameters: values are JSON, lists of them between commas, or words.

    Raises:
        click.UsageError: One has no value, or is given twice.

    Example:
        >>> head_params(("C=0.1,1,10", "standardize=false"), metric="macro_f1", class_weight=None)
        {'C': [0.1, 1, 10], 'standardize': False, 'metric': 'macro_f1'}
    """
    params: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name or not text.strip():
            raise click.UsageError(f"--param {item!r} is not NAME=VALUE", click.get_current_context(silent=True))
        if name in _OWN:
            raise click.UsageError(f"--param {item!r}: {_OWN[name]}", click.get_current_context(silent=True))
        _put(params, name, _value(text.strip()))
    for name, value in named.items():
        if value is not None:
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
