"""Commands with grouped options and a printed result, and the options that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import click
from click.core import ParameterSource

from bertfeat.choices import Choice
from bertfeat.cli.failures import Outcome
from bertfeat.config import ExtractConfig, flag, parse_size
from bertfeat.display import facts
from bertfeat.errors import BertfeatError

Command = Callable[..., Any]
Option = Callable[[Command], Command]
RUN = "Run"
_LAST = "Other options"
_HELP_ALL = "--help-all"
# Options whose values are lost if they are repeated, because click keeps the last one. Those of a run, such as
# --device, may be repeated: an alias may hold one that a later one replaces.
ONCE = {"levels", "layers", "rows", "positions", "combine", "keep_columns", "columns", "features", "baselines"}
ONCE |= {"level", "pooling", "word_pooling", "feature", "mix", "label", "where", "word"}
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(ExtractConfig)}
_KINDS = get_type_hints(ExtractConfig)
_SIZES = {"shard_bytes": "256MB", "cache_size": "10GB"}
_METAVARS = {
    "delimiter": "C",
    "prompt": "TEXT",
    "shards": "I/N",
    "ray_address": "ADDRESS",
    "cache": "FOLDER",
    "rows": "SQL",
    "spans": "FILE",
    "chunk": "HOW",
}
_METAVARS |= {name: name.upper() for name in ("model", "layers", "device")}


class _GroupedOption(click.Option):
    """An option with its heading in the help."""

    def __init__(self, *names: Any, heading: str = "", **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.heading = heading


def _show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings, and which refuses to take the last of several choices.

    `common` has the names of the options that `--help` shows, if there are many; `--help-all` shows all of them.
    """

    def __init__(self, *args: Any, common: str = "", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._common = set(common.split())
        for param in self.params:
            if param.type is click.STRING:
                # A shell completes a text as the name of a file.
                param.type = click.Path(readable=False)
        if self._common:
            show: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
            self.params.append(click.Option([_HELP_ALL], help="Show all options and exit.", **show))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; an option whose first value would be lost without a word is given once."""
        parser = self.make_parser(ctx)
        # An unknown option is refused below, when `--json` is known.
        parser.ignore_unknown_options = True
        values, _, given = parser.parse_args(list(args))
        ctx.ensure_object(Outcome).as_json = bool(values.get("as_json"))
        repeated = [param.opts[0] for param in given if param.name in ONCE and given.count(param) > 1]
        if repeated and not ctx.resilient_parsing:
            raise click.UsageError(f"{repeated[0]} is given more than once; give it once", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group, in the order of their declaration."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            heading, record = getattr(param, "heading", _LAST), param.get_help_record(ctx)
            is_shown = not self._common or param.name in self._common or heading == _LAST or _HELP_ALL in ctx.meta
            if record is not None and isinstance(param, click.Option) and is_shown:
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=30)


class Printed(NamedTuple):
    """A result that people read otherwise than as the facts of its values, or that fails after it is printed."""

    values: Mapping[str, Any]
    text: str = ""
    failure: BertfeatError | None = None


def show(result: Mapping[str, Any] | Printed, *, as_json: bool, quiet: bool) -> None:
    """Print the result of a command: as one JSON object, with the warnings, or as its text or facts."""
    found = result if isinstance(result, Printed) else Printed(result)
    if as_json:
        warned = click.get_current_context().ensure_object(Outcome).warned
        click.echo(json.dumps({**found.values, "warnings": warned}, default=str))
    elif not quiet or found.failure:
        click.echo(found.text or facts(found.values))
    if found.failure:
        raise found.failure


def output_options(command: Command) -> Command:
    """Add --json and --quiet."""
    return together(
        switch(RUN, "--json", "Print the result as one JSON object.", "as_json"),
        switch(RUN, "--quiet", "Print errors and warnings only."),
    )(command)


def prints(command: Callable[..., Mapping[str, Any] | Printed]) -> Command:
    """Add --json and --quiet to a command, and print what it returns; `watched` is the progress that they leave."""

    @functools.wraps(command)
    def run(*, as_json: bool, quiet: bool, **values: Any) -> None:
        show(command(**values), as_json=as_json, quiet=quiet)

    return output_options(run)


def writes(metavar: str, text: str) -> Option:
    """Return the options of a command that writes a file or folder and prints its result: --output, --overwrite."""
    output = option(RUN, "-o", "--output", required=True, metavar=metavar, help=text)
    return together(output, switch(RUN, "--overwrite", "Replace what is already there."), prints)


def watched() -> bool | None:
    """Return the progress of the command that runs: none with --json or --quiet, else as a terminal wants it."""
    given = click.get_current_context().params
    return False if given["as_json"] or given["quiet"] else None


def option(heading: str, *names: str, **attributes: Any) -> Option:
    """Return an option under a heading."""
    return click.option(*names, cls=_GroupedOption, heading=heading, **attributes)


def value(heading: str, name: str, metavar: str, text: str, default: str | None = None) -> Option:
    """Return an option that takes a text."""
    return option(heading, name, metavar=metavar, default=default, show_default=bool(default), help=text)


def switch(heading: str, name: str, text: str, *names: str) -> Option:
    """Return an option without a value."""
    return option(heading, name, *names, is_flag=True, help=text)


def count(heading: str, name: str, default: int | None, text: str, least: int = 0, most: int | None = None) -> Option:
    """Return an option that takes a whole number."""
    kind = click.IntRange(least, most)
    return option(heading, name, type=kind, metavar="N", default=default, show_default=default is not None, help=text)


def size(heading: str, name: str, default: str | None, text: str) -> Option:
    """Return an option that takes a number of bytes, perhaps with a decimal unit."""
    shown = {"metavar": "SIZE", "default": default, "show_default": bool(default)}
    return option(heading, name, callback=_bytes, help=text, **shown)


def _bytes(_: click.Context, param: click.Parameter, text: str | None) -> int | None:
    return None if text is None else parse_size(text, str(param.name))


def choice(heading: str, name: str, choices: Sequence[str], text: str, *, optional: bool = False) -> Option:
    """Return an option that takes one of some words, by default the first, or none if it is `optional`."""
    default = None if optional else choices[0]
    return option(heading, name, type=click.Choice(choices), default=default, show_default=not optional, help=text)


def together(*options: Option) -> Option:
    """Return several options as one decorator."""
    return lambda command: functools.reduce(lambda made, one: one(made), reversed(options), command)


def refuse_given(names: Container[str | None], reason: str) -> None:
    """Refuse options of the command line that would be ignored."""
    context = click.get_current_context()
    for param in context.command.params:
        if param.name in names and context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]} {reason}", context)


def _settings(heading: str, **texts: str) -> Option:
    """Return options for settings of an extraction; their types and defaults are those of `ExtractConfig`."""
    return together(*(option(heading, flag(name), name, help=text, **_as(name)) for name, text in texts.items()))


def _as(name: str) -> dict[str, Any]:
    kind, default = _KINDS[name], _DEFAULTS[name]
    attributes: dict[str, Any] = {"metavar": _METAVARS.get(name, "NAME"), "default": default}
    if kind is bool:
        attributes = {"is_flag": True}
    elif isinstance(kind, type) and issubclass(kind, Choice):
        attributes = {"type": click.Choice([str(member) for member in kind.names()]), "default": str(default)}
    elif name in _SIZES:
        attributes = {"metavar": "SIZE", "callback": _bytes, "default": _SIZES[name]}
    elif kind == int | None:
        attributes = {"type": int, "metavar": "N"}
    elif isinstance(default, tuple):
        attributes = {"metavar": "A,B", "default": ",".join(default) or None}
    return {"show_default": attributes.get("default") is not None, **attributes}


corpus_options = _settings(
    "Corpus",
    format="Format of the input; auto goes by the file ending.",
    text_column="Column with the text.",
    text_pair_column="Column with a second text.",
    text_pairs="Lines of .txt hold two texts: first ||| second.",
    id_column="Column with a document's id; without it, row numbers; FASTA: its ids.",
    keep_columns="Columns to keep at the sentence level.",
    is_split_into_words="The text column holds a list of words.",
    label_column="Column with a label for each word, by name or number. CoNLL: the last by default.",
    document_column="Column that names the document a sentence belongs to.",
    no_header="The .csv or .tsv has no header; name its columns by number from 1.",
    delimiter="What separates the columns of .csv or .tsv: ; or | or tab.  [default: by ending]",
    limit="Only the first N documents.",
    bad_rows="Stop at a row that cannot be read, or set it aside with the reason.",
)
model_options = _settings(
    "Model",
    model="Installed model package, folder, file of word vectors, or hub id.",
    revision="Branch, tag or commit of a hub model.",
)
feature_options = _settings(
    "Features",
    levels="What a row stands for: token, word, span, sentence, or several of them.",
    layers="all, last4, or numbers and ranges: 0,4,-1 or -4..-1. 0 is the output of the embedding layer.",
    rows="Keep only the rows for which this SQL is true: \"word in ('bank', 'banks')\", \"is_special = false\".",
    positions="Keep only these of a document's rows: 0 is the first, last or -1 the last, as in 0,last.",
    combine="Columns to write: none (one per layer), concat, sum, mean.  [default: none,concat for last4, else none]",
    word_pooling="How the tokens of a word become one vector.",
    unknown_words="Words that static vectors lack have no vector, or zeros.",
    spans="The spans of level span: a table of doc_id, char_start, char_end; or words:bank,banks; or a pattern.",
    span_pooling="How the tokens of a span become one vector; ends: the first and the last.",
    span_pair="How the vectors of two spans in a row of --spans become one.",
    chunk="Cut documents into spans: paragraphs, sentences, or tokens:N or tokens:N:OVERLAP.",
    chunk_context="Encode a chunk within its document, or alone.",
    pooling="How the tokens of a document become one vector; model: the model's own sentence embedding.",
    include_special_tokens="Count special tokens and the prompt in the mean or maximum of a document.",
    prompt="Text to put before each document; its tokens have no rows.",
    prompt_name="Name of one of the model's own prompts.",
)
length_options = _settings(
    "Long documents and context",
    max_length="Tokens in a window, special ones included.  [default: what the model takes; decoders 8,192]",
    stride="Tokens that neighboring windows share.  [default: max-length / 4]",
    on_overlong="What happens to documents longer than a window.",
    document_context="Encode sentences together with their neighbors in the document.",
)
store_options = _settings(
    "Store",
    store_dtype="Type of the stored vectors.",
    vector_encoding="Fixed-size list, or fixed-size binary (faster to read).",
    shard_bytes="Size of a shard, the unit of resume.",
)
compute_options = _settings(
    "Computing",
    device="auto, cpu, mps, cuda, cuda:0,cuda:1.",
    compute_dtype=(
        "Type to compute in; auto: bfloat16 on CUDA from Ampere on and for weights in bfloat16, else float32."
    ),
    max_batch_tokens="Tokens in a forward pass.  [default: by device and width]",
    workers="Processes; on Ray, actors.  [default: one per device; on Ray without GPUs, one per machine]",
    shards="Do share I of N of the shards: every Nth one. Other processes do the other shares.",
    runner="Where shards run: on this machine, or on a Ray cluster.",
    ray_address="The Ray cluster: auto, HOST:PORT, ray://HOST:PORT.  [default: $RAY_ADDRESS, else Ray is started here]",
    cache="Keep vectors in this folder, so that later runs encode only what is new.",
    cache_size="Largest size of the cache.",
)
