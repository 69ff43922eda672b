"""`bertfeat search` and `serve`: the most similar documents, or the most similar words in context."""

from __future__ import annotations

import contextlib
import signal
import warnings
from typing import Any

import click

from bertfeat.cli.options import (
    RUN,
    GroupedCommand,
    Printed,
    count,
    option,
    output_options,
    refuse_given,
    show,
    switch,
    value,
)
from bertfeat.errors import BertfeatWarning, require

_QUERY, _FILTER, _OUTPUT = "Query", "Which rows may be found", "Output"


@click.command(
    name="search",
    cls=GroupedCommand,
    common="k queries where same_word exclude_same_word output columns context full as_json",
)
@click.argument("index", metavar="INDEX")
@click.argument("text", metavar="[TEXT]", required=False)
@option(_QUERY, "-k", "k", type=int, default=10, show_default=True, metavar="N", help="How many to find at most.")
@value(_QUERY, "--queries", "FILE", "Search for every text of a .jsonl, .csv, ...: needs -o. Or - for lines of stdin.")
@value(_QUERY, "--text-column", "NAME", "Its column with the text.", "text")
@value(_QUERY, "--id-column", "NAME", "Its column with the id.  [default: id, _id or query_id, if there]")
@value(_FILTER, "--where", "SQL", "Condition on columns of the store: \"label = 'x' AND n_tokens > 3\".")
@switch(_FILTER, "--same-word", "Only the marked word itself, in upper or lower case.")
@switch(_FILTER, "--exclude-same-word", "Only other words.")
@option(_OUTPUT, "-o", "--output", metavar="FILE", help="File for the hits of --queries: .parquet or .csv.")
@switch(_OUTPUT, "--overwrite", "Replace the file of --output.")
@value(_OUTPUT, "--columns", "A,B", "Further columns of the store to show.")
@count(_OUTPUT, "--context", 40, "Columns of text around a word.")
@switch(_OUTPUT, "--full", "Whole lines; otherwise a terminal shows what fits its width.")
@output_options
@value(_QUERY, "--store", "STORE", "Where the store is now.")
def search(index: str, text: str | None, queries: str | None, store: str | None, **settings: Any) -> None:
    """Find what is most similar to a text, or to a word as it is used in a text.

    TEXT is encoded exactly as the store of INDEX was. In an index of words or tokens, brackets mark the one to search
    for, and its nearest are occurrences with a similar use; write \\[ for a bracket of the text. With --json, each hit
    is an object on its own line, or with --queries - each query.

    \b
    Examples:
      bertfeat search words.index "He sat on the [bank] of the river" --exclude-same-word
      bertfeat search sentences.index --queries questions.jsonl -o hits.parquet -k 100
      tail -f questions.txt | bertfeat search sentences.index --queries - --json
    """  # noqa: D301
    context, is_file = click.get_current_context(), queries not in (None, "-")
    if (text is None) == (queries is None):
        raise click.UsageError("write one TEXT to search for, or pass --queries FILE", context)
    if not is_file:
        refuse_given(("output", "text_column", "id_column", "overwrite"), "is for --queries FILE")
    elif settings["output"] is None:
        raise click.UsageError("--queries FILE needs a file for the hits: -o HITS.parquet", context)
    if settings["same_word"] and settings["exclude_same_word"]:
        raise click.UsageError("--same-word and --exclude-same-word leave nothing to find; pass one of them", context)
    if settings["full"] and (is_file or settings["as_json"]):
        what = "a file of hits" if is_file else "--json"
        warnings.warn(BertfeatWarning(f"`full` has no effect on {what}"), stacklevel=1)
    from bertfeat.search.index import open_index

    with open_index(index, store=store) as opened:
        from bertfeat.cli.search_output import answer_queries, hit_lines, search_file

        if text is not None:
            for line in hit_lines(opened, text, settings):
                click.echo(line)
        elif queries == "-":
            answer_queries(opened, settings)
        elif queries is not None:
            search_file(opened, queries, settings)


@click.command(name="serve", cls=GroupedCommand)
@click.argument("index", metavar="INDEX")
@count(RUN, "--port", 8000, "Port on 127.0.0.1; 0 takes a free one.", most=65535)
@value(RUN, "--store", "STORE", "Where the store is now.")
@output_options
def serve(index: str, port: int, store: str | None, as_json: bool, quiet: bool) -> None:
    """Search INDEX in a browser: a page on 127.0.0.1, which only this machine can open.

    The page has filters on the columns of the corpus, and for each hit a link to what is most similar to it. GET
    /api/search?q=TEXT&k=10 answers in JSON, with the fields of `bertfeat search --json`; /api/info describes the index.
    Ctrl-C ends it.
    """
    require("jinja2", "starlette", "uvicorn", what="the search page needs")
    from bertfeat.cli.index import index_summary
    from bertfeat.search.index import open_index
    from bertfeat.serving import searchpage

    with open_index(index, store=store) as opened:
        summary = index_summary(opened.path, opened.description)

        def ready(address: str) -> None:
            about = f"{opened.path}: {summary['n_vectors']:,} vectors of {summary['dim']} dimensions"
            text = f"{about}\n{address}  (Ctrl-C ends it)"
            show(Printed({"address": address, **summary}, text), as_json=as_json, quiet=quiet)

        # SIGTERM ends it as Ctrl-C does: the index is closed, and the exit code is 0.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            searchpage.serve(opened, summary, port, ready)
