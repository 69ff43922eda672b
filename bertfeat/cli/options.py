"""The options of `bertfeat extract`, in the groups that its help shows."""

from __future__ import annotations

from collections.abc import Callable, Container
from enum import StrEnum
from typing import Any

import click
from click.core import ParameterSource

from bertfeat import choices
from bertfeat.config import ExtractConfig, flag, parse_size
from bertfeat.errors import ConfigError

Command = Callable[..., None]
Option = Callable[[Command], Command]
RUN = "Run"
_LAST = "Other options"
_DEFAULTS = ExtractConfig()
# Options that take a list: if one is repeated, click silently keeps the last. Those of a run, such as --device, may be
# repeated: an alias may hold one that a later one replaces.
_LISTS = {"levels", "layers", "combine", "keep_columns", "columns", "features"}
_CHOICES = {"level", "pooling", "word_pooling", "feature", "mix", "label", "where", "word"}


class _GroupedOption(click.Option):
    """An option with its heading in the help."""

    def __init__(self, *names: Any, heading: str = "", **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.heading = heading


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings, and which refuses to take the last of several choices."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; an option whose first value would be lost without a word is given once."""
        *_, given = self.make_parser(ctx).parse_args(list(args))
        names = [param.name for param in given]
        for param in given:
            if names.count(param.name) > 1 and param.name in _LISTS | _CHOICES and not ctx.resilient_parsing:
                remedy = "with commas between the values" if param.name in _LISTS else "with one value"
                raise click.UsageError(f"{param.opts[0]} is given more than once; give it once, {remedy}", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group, in the order of their declaration."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "heading", "") or _LAST, []).append(record)
        for heading, records in sorted(groups.items(), key=lambda group: group[0] == _LAST):
            with formatter.section(heading):
                formatter.write_dl(records, col_max=30)


class ByteSize(click.ParamType[int]):
    """A number of bytes, optionally with a decimal unit: 256MB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes as a number.

        Examples:
            >>> ByteSize().convert("1.5 GB", None, None)
            1500000000
        """
        try:
            return parse_size(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def option(heading: str, *names: str, **attributes: Any) -> Option:
    """Return an option under a heading."""
    return click.option(*names, cls=_GroupedOption, heading=heading, **attributes)


def output_options(command: Command) -> Command:
    """Add --json and --quiet."""
    command = option(RUN, "--quiet", is_flag=True, help="Print errors and warnings only.")(command)
    return option(RUN, "--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(command)


def refuse_given(names: Container[str | None], reason: str) -> None:
    """Refuse options of the command line that would be ignored."""
    context = click.get_current_context()
    for param in context.command.params:
        if param.name in names and context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]} {reason}", context)


def _choice(name: str, kind: type[StrEnum], text: str) -> tuple[str, dict[str, Any]]:
    choices = click.Choice([str(member) for member in kind])
    default = str(getattr(_DEFAULTS, name))
    return name, {"type": choices, "default": default, "show_default": True, "help": text}


def text(name: str, metavar: str, help_text: str, *, default: str | None = None) -> tuple[str, dict[str, Any]]:
    """Return the name and the attributes of an option that takes a text."""
    return name, {"metavar": metavar, "default": default, "show_default": bool(default), "help": help_text}


def _number(name: str, text: str, *, auto: str) -> tuple[str, dict[str, Any]]:
    return name, {"type": int, "metavar": "N", "default": None, "help": f"{text}  [default: {auto}]"}


def _switch(name: str, text: str) -> tuple[str, dict[str, Any]]:
    return name, {"is_flag": True, "help": text}


def together(heading: str, *specs: tuple[str, dict[str, Any]]) -> Option:
    """Return options under a heading, as one decorator."""

    def decorate(command: Command) -> Command:
        for name, attributes in reversed(specs):
            command = option(heading, flag(name), name, **attributes)(command)
        return command

    return decorate


corpus_options = together(
    "Corpus",
    _choice("format", choices.CorpusFormat, "Format of the input; auto goes by the file ending."),
    text("text_column", "NAME", "Column with the text.", default=_DEFAULTS.text_column),
    text("text_pair_column", "NAME", "Column with a second text."),
    _switch("text_pairs", "Lines of .txt hold two texts: first ||| second."),
    text("id_column", "NAME", "Column with a document's id; without it, ids are row numbers."),
    text("keep_columns", "A,B", "Columns to keep at the sentence level."),
    _switch("is_split_into_words", "The text column holds a list of words."),
    text("label_column", "NAME", "Column with a label for each word, by name or number. CoNLL: the last by default."),
    text("document_column", "NAME", "Column that names the document a sentence belongs to."),
    _switch("no_header", "The .csv or .tsv has no header; name its columns by number from 1."),
    text("delimiter", "C", "What separates the columns of .csv or .tsv: ; or | or tab.  [default: by ending]"),
    ("limit", {"type": click.IntRange(min=1), "metavar": "N", "help": "Only the first N documents."}),
    _choice("bad_rows", choices.BadRows, "Stop at a row that cannot be read, or set it aside with the reason."),
)
model_options = together(
    "Model",
    text(
        "model", "MODEL", "Installed model package, folder, file of word vectors, or hub id.", default=_DEFAULTS.model
    ),
    text("revision", "NAME", "Branch, tag or commit of a hub model."),
)
feature_options = together(
    "Features",
    text("levels", "A,B", "What a row stands for: token, word, sentence, or several of them.", default="token"),
    text(
        "layers",
        "SPEC",
        "all, last4, or numbers and ranges: 0,4,-1 or -4..-1. 0 is the output of the embedding layer.",
        default=_DEFAULTS.layers,
    ),
    text(
        "combine",
        "A,B",
        "Columns to write: none (one per layer), concat, sum, mean.  [default: none,concat for last4, else none]",
    ),
    _choice("word_pooling", choices.WordPooling, "How the tokens of a word become one vector."),
    _choice("unknown_words", choices.UnknownWords, "Words that static vectors lack have no vector, or zeros."),
    _choice(
        "pooling",
        choices.Pooling,
        "How the tokens of a document become one vector; model: the model's own sentence embedding.",
    ),
    _switch("include_special_tokens", "Count special tokens and the prompt in the mean or maximum of a document."),
    text("prompt", "TEXT", "Text to put before each document; its tokens have no rows."),
    text("prompt_name", "NAME", "Name of one of the model's own prompts."),
)
length_options = together(
    "Long documents and context",
    _number("max_length", "Tokens in a window, special ones included.", auto="what the model takes; decoders 8,192"),
    _number("stride", "Tokens that neighbouring windows share.", auto="max-length / 4"),
    _choice("on_overlong", choices.OnOverlong, "What happens to documents longer than a window."),
    _switch("document_context", "Encode sentences together with their neighbours in the document."),
)
store_options = together(
    "Store",
    _choice("store_dtype", choices.StoreDtype, "Type of the stored vectors."),
    _choice("vector_encoding", choices.VectorEncoding, "Fixed-size list, or fixed-size binary (faster to read)."),
)
compute_options = together(
    "Computing",
    text("device", "DEVICE", "auto, cpu, mps, cuda, cuda:0,cuda:1.", default=_DEFAULTS.device),
    _choice(
        "compute_dtype",
        choices.ComputeDtype,
        "Type to compute in; auto: bfloat16 on CUDA from Ampere on and for weights in bfloat16, else float32.",
    ),
    _number("max_batch_tokens", "Tokens in a forward pass.", auto="by device and width"),
    (
        "shard_bytes",
        {"type": ByteSize(), "default": "256MB", "show_default": True, "help": "Size of a shard, the unit of resume."},
    ),
    _number("workers", "Processes; on Ray, actors.", auto="one per device; on Ray without GPUs, one per machine"),
    text("shards", "I/N", "Do share I of N of the shards: every Nth one. Other processes do the other shares."),
    _choice("runner", choices.Runner, "Where shards run: on this machine, or on a Ray cluster."),
    text(
        "ray_address",
        "ADDRESS",
        "The Ray cluster: auto, HOST:PORT, ray://HOST:PORT.  [default: $RAY_ADDRESS, else Ray is started here]",
    ),
    text("cache", "FOLDER", "Keep vectors in this folder, so that later runs encode only what is new."),
    (
        "cache_size",
        {"type": ByteSize(), "default": "10GB", "show_default": True, "help": "Largest size of the cache."},
    ),
)
