"""`bertfeat search`: the most similar documents, or the most similar words in context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bertfeat.cli.options import GroupedCommand, option, refuse_given

if TYPE_CHECKING:
    from bertfeat.search.index import Index

_STDIN = "-"
# Options of how a file of queries is read and its hits are written.
_OF_FILES = ("text_column", "id_column", "overwrite")
_QUERY, _FILTER, _OUTPUT = "Query", "Which rows may be found", "Output"
_HELP = """Find what is most similar to a text, or to a word as it is used in a text.

TEXT is encoded exactly as the store of INDEX was. In an index of words or tokens, brackets mark the one to search for,
and its nearest are occurrences with a similar use; write \\[ for a bracket of the text.

\b
Examples:
  bertfeat search sentences.index "how do I wash a woollen jumper?" -k 5
  bertfeat search words.index --level word "He sat on the [bank] of the river" --exclude-same-word
  bertfeat search sentences.index "late delivery" --where "label = 'complaint'" --json
  bertfeat search sentences.index --queries questions.jsonl --out hits.parquet -k 100
  tail -f questions.txt | bertfeat search sentences.index --queries - --json
"""


@click.command(name="search", cls=GroupedCommand, help=_HELP)
@click.argument("index", metavar="INDEX")
@click.argument("text", metavar="[TEXT]", required=False)
@option(_QUERY, "-k", "k", type=int, default=10, show_default=True, metavar="N", help="How many to find at most.")
@option(_QUERY, "--level", type=click.Choice(["token", "word", "sentence"]), help="The level that INDEX must hold.")
@option(_QUERY, "--span", is_flag=True, help="Require an index of words or tokens; TEXT has one in brackets.")
@option(
    _QUERY,
    "--queries",
    metavar="FILE",
    help="Search for every text of a .txt, .jsonl, .csv, ...: needs --out. Or - for lines of stdin.",
)
@option(_QUERY, "--text-column", metavar="NAME", default="text", show_default=True, help="Its column with the text.")
@option(_QUERY, "--id-column", metavar="NAME", help="Its column with the id.  [default: id, _id or query_id, if there]")
@option(_FILTER, "--where", metavar="SQL", help="Condition on columns of the store: \"label = 'x' AND n_tokens > 3\".")
@option(_FILTER, "--same-word", is_flag=True, help="Only the marked word itself, in upper or lower case.")
@option(_FILTER, "--exclude-same-word", is_flag=True, help="Only other words.")
@option(_OUTPUT, "--out", metavar="FILE", help="File for the hits of --queries: .parquet or .csv.")
@option(_OUTPUT, "--overwrite", is_flag=True, help="Replace the file of --out.")
@option(_OUTPUT, "--columns", metavar="A,B", help="Further columns of the store to show.")
@option(
    _OUTPUT, "--context", type=click.IntRange(0), default=40, show_default=True, help="Columns of text around a word."
)
@option(_OUTPUT, "--full", is_flag=True, help="Whole lines; otherwise a terminal shows what fits its width.")
@option(
    _OUTPUT,
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per hit, or per query of -, each on its own line.",
)
@option(_OUTPUT, "--quiet", is_flag=True, help="Print hits, errors and warnings only.")
@click.option("--store", metavar="STORE", help="Where the store is now.")
def command(
    index: str, text: str | None, queries: str | None, level: str | None, span: bool, store: str | None, **settings: Any
) -> None:
    """Find the most similar texts, or words in context."""
    _check_flags(text, queries, settings)
    from bertfeat.search.index import open_index

    with open_index(index, store=store) as opened:
        _check_level(opened, level, span=span)
        if queries == _STDIN:
            from bertfeat.cli.search_stream import answer_queries

            answer_queries(opened, settings)
        elif queries is not None:
            from bertfeat.cli.search_batches import search_file

            search_file(opened, queries, settings)
        else:
            from bertfeat.cli.search_output import hit_lines

            assert text is not None
            for line in hit_lines(opened, text, settings):
                click.echo(line)


def _check_flags(text: str | None, queries: str | None, settings: dict[str, Any]) -> None:
    context = click.get_current_context()
    if text is not None and not text.strip():
        raise click.UsageError(f"TEXT {text!r}: nothing to search for", context)
    if (text is None) == (queries is None):
        what = "no TEXT to search for; write one, or pass --queries FILE" if text is None else "both TEXT and --queries"
        raise click.UsageError(what if text is None else f"{what} are given; pass one of them", context)
    if queries in (None, _STDIN):
        refuse_given(("out", *_OF_FILES), "is for --queries FILE" + ("; the hits of - are printed" if queries else ""))
        if settings["as_json"]:
            refuse_given(("full",), "is for lines; JSON always has the whole text")
    elif settings["out"] is None:
        raise click.UsageError("--queries FILE needs a file for the hits: --out HITS.parquet", context)
    else:
        what = "is for hits that are printed; those of --queries FILE go to --out"
        refuse_given(("as_json", "context", "full"), what)
    if settings["same_word"] and settings["exclude_same_word"]:
        raise click.UsageError("--same-word and --exclude-same-word leave nothing to find; pass one of them", context)


def _check_level(index: Index, level: str | None, *, span: bool) -> None:
    from bertfeat.errors import UserError

    if index.level == "sentence":
        refuse_given(("context",), "is for words and tokens; INDEX holds whole texts")
    if level is not None and level != index.level:
        raise UserError(f"{index.path}: holds level {index.level}, not {level}; drop --level, or use another index")
    if span and index.level == "sentence":
        raise UserError(f"{index.path}: holds whole texts, not words; drop --span, or build an index with --level word")
