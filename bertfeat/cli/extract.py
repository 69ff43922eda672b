"""`bertfeat extract`: from text files to a store of features."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import click

from bertfeat import config as settings
from bertfeat.config import ExtractConfig

Option = Callable[[Callable[..., None]], Callable[..., None]]
_DEFAULTS = ExtractConfig()
_MULTIPLIERS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class ByteSize(click.ParamType[int]):
    """A number of bytes, with a decimal unit if wanted: 256MB."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes as a number."""
        if isinstance(value, int):
            return value
        text = str(value).strip().upper()
        number = text.rstrip("KMGTB ")
        unit = text[len(number) :].strip()
        try:
            return int(float(number) * _MULTIPLIERS[unit])
        except (ValueError, KeyError):
            self.fail(f"{value!r} is no size; write for example 256MB", param, ctx)


def _choice(name: str, kind: type[StrEnum], text: str) -> Option:
    default = str(getattr(_DEFAULTS, name))
    return click.option(
        settings.flag(name),
        name,
        type=click.Choice([str(member) for member in kind]),
        default=default,
        show_default=True,
        help=text,
    )


def _text(name: str, text: str, *, metavar: str = "TEXT", default: str | None = None) -> Option:
    return click.option(
        settings.flag(name), name, metavar=metavar, default=default, show_default=bool(default), help=text
    )


def _number(name: str, text: str, *, auto: str) -> Option:
    return click.option(settings.flag(name), name, type=int, default=None, help=f"{text}  [default: {auto}]")


def _switch(name: str, text: str) -> Option:
    return click.option(settings.flag(name), name, is_flag=True, help=text)


def _together(*options: Option) -> Option:
    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_corpus_options = _together(
    _choice("format", settings.CorpusFormat, "Format of the input; auto goes by the file ending."),
    _text("text_column", "Column with the text.", metavar="NAME", default=_DEFAULTS.text_column),
    _text("text_pair_column", "Column with a second text.", metavar="NAME"),
    _switch("text_pairs", "Lines of .txt hold two texts: `first ||| second`."),
    _text("id_column", "Column with a document's id; without it, ids are row numbers.", metavar="NAME"),
    _text("keep_columns", "Columns to keep at the sentence level.", metavar="A,B"),
    _switch("is_split_into_words", "The text column holds a list of words."),
    _text(
        "label_column",
        "Column with a label for each word (CoNLL: by name or number; default the last).",
        metavar="NAME",
    ),
    _text("document_column", "Column that names the document a sentence belongs to.", metavar="NAME"),
    _choice("bad_rows", settings.BadRows, "End at a row that cannot be read, or keep it aside with its reason."),
)
_feature_options = _together(
    _text("model", "Installed model package, local folder, or hub id.", metavar="MODEL", default=_DEFAULTS.model),
    _text("revision", "Revision of a hub model."),
    _text("levels", "What a row stands for: token, word, sentence, or several.", metavar="A,B", default="token"),
    _text("layers", "all, last4, or numbers and ranges: 0,4,-1 or -4..-1.", metavar="SPEC", default=_DEFAULTS.layers),
    _text("combine", "Columns to write: none (one a layer), concat, sum, mean.", metavar="A,B", default="none,concat"),
    _choice("word_pooling", settings.WordPooling, "How the tokens of a word become one vector."),
    _choice("pooling", settings.Pooling, "How the tokens of a document become one vector."),
    _switch("include_special_tokens", "Count special tokens in the mean or maximum of a document."),
    _number("max_length", "Tokens in a window, special ones included.", auto="what the model takes"),
    _number("stride", "Tokens that neighbouring windows share.", auto="max-length / 4"),
    _choice("on_overlong", settings.OnOverlong, "What happens to longer documents."),
    _switch("document_context", "Encode sentences with their neighbours in the document."),
    _choice("store_dtype", settings.StoreDtype, "Type of the stored vectors."),
    _choice("vector_encoding", settings.VectorEncoding, "Fixed-size list, or fixed-size binary (faster to read)."),
    _choice("compute_dtype", settings.ComputeDtype, "Type to compute in; auto is float32 on CPU, bfloat16 on CUDA."),
)
_run_options = _together(
    _text("device", "auto, cpu, mps, cuda, cuda:0,cuda:1.", metavar="DEVICE", default=_DEFAULTS.device),
    _number("max_batch_tokens", "Tokens in a forward pass.", auto="by device"),
    click.option("--shard-bytes", type=ByteSize(), default="256MB", show_default=True, help="Output of a shard."),
    _number("workers", "Processes.", auto="one a device"),
)


@click.command(name="extract", short_help="Run an encoder over a corpus and keep its hidden states.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("-o", "--output", metavar="DIR", help="Folder of the store.")
@_corpus_options
@_feature_options
@_run_options
@click.option("--dry-run", is_flag=True, help="Say how many rows, tokens, bytes and seconds; write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace a store that is already there.")
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.option("--progress", "show_progress", is_flag=True, help="Show progress even where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    inputs: tuple[str, ...],
    output: str | None,
    dry_run: bool,
    overwrite: bool,
    quiet: bool,
    show_progress: bool,
    as_json: bool,
    **values: Any,
) -> None:
    r"""Run an encoder over a corpus once and keep its hidden states as Parquet.

    INPUT is one or more files or globs, or - for standard input: .txt (a line is a document), .jsonl, .csv, .tsv,
    .parquet, .conll, .conllu; text formats also as .gz or .zst. Run again, the same command goes on where it broke
    off, and does nothing on a finished store.

    \b
    Examples:
      bertfeat extract reviews.csv -o features --text-column body --level sentence --layers -1
      bertfeat extract train.conll -o features --level word --layers last4
      bertfeat extract corpus.txt.gz -o features --model ./my-bert --layers 0,9..12 --dry-run
    """
    config = ExtractConfig.from_dict({name: value for name, value in values.items() if value is not None})
    if dry_run:
        _dry_run(inputs, config, as_json=as_json)
        return
    if output is None:
        raise click.UsageError("Missing option '-o' / '--output'.", click.get_current_context())
    _extract(inputs, output, config, overwrite=overwrite, quiet=quiet, show_progress=show_progress, as_json=as_json)


def _dry_run(inputs: tuple[str, ...], config: ExtractConfig, *, as_json: bool) -> None:
    from bertfeat.cli.summary import estimate_lines
    from bertfeat.estimation import estimate

    result = estimate(inputs, config)
    click.echo(json.dumps(result.to_dict()) if as_json else "\n".join(estimate_lines(result)))


def _extract(
    inputs: tuple[str, ...],
    output: str,
    config: ExtractConfig,
    *,
    overwrite: bool,
    quiet: bool,
    show_progress: bool,
    as_json: bool,
) -> None:
    from bertfeat.cli.progress import ProgressLine
    from bertfeat.cli.summary import result_line, store_summary
    from bertfeat.extraction import extract

    line = ProgressLine() if show_progress or (sys.stderr.isatty() and not quiet and not as_json) else None
    try:
        store = extract(list(inputs), output, config, overwrite=overwrite, progress=line)
    finally:
        if line is not None:
            line.close()
    if as_json:
        click.echo(json.dumps(store_summary(store)))
    elif not quiet:
        click.echo(result_line(store))
