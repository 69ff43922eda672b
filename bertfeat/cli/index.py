"""`bertfeat index`: build an index of a store's vectors, add to it, describe it, measure it."""

from __future__ import annotations

import json
from typing import Any

import click

from bertfeat.cli.groups import Group
from bertfeat.cli.inspect import show
from bertfeat.cli.options import RUN, ByteSize, GroupedCommand, option, output_options

_WHAT, _HOW = "What", "How"
_HELP = """Indexes find the most similar rows of a store.

\b
Examples:
  bertfeat index build features -o sentences.index --level sentence --transform center
  bertfeat index build features -o words.index --level word --feature layer_11 --max-memory 8GB
  bertfeat index build features -o tuned.index --level sentence --tune-queries questions.txt
  bertfeat index update sentences.index grown-features
  bertfeat index info sentences.index
  bertfeat index eval sentences.index --queries queries.jsonl --qrels qrels.tsv
  bertfeat search sentences.index "how do I wash a woollen jumper?"
"""
_BUILD_HELP = """Index the vectors of a store, so that `bertfeat search` finds the nearest ones.

Run the same command again to resume; on a finished index it does nothing. The memory is estimated before anything is
read: an index that does not fit is refused, and the best one that fits is named.

--index auto searches exactly up to 16.8 million values (43,000 vectors of 384). Larger collections use an inverted-file
index; the number of lists that a search reads is tuned until it finds --recall of the ten nearest. Or name an index as
faiss does: Flat, HNSW32, IVF1024,SQ8, ...

Recall is measured with random vectors of the index. Queries from other texts may find less. With --tune-queries FILE,
queries like those to come are searched for instead: a file of texts as for bertfeat search --queries. The recall of
both is printed.
"""


@click.group(name="index", cls=Group, help=_HELP)
def command() -> None:
    """Build, update, describe and measure indexes."""


@command.command(
    name="build", cls=GroupedCommand, help=_BUILD_HELP, short_help="Index the vectors of a store for searching."
)
@click.argument("store", metavar="STORE")
@option(RUN, "-o", "--output", required=True, metavar="INDEX", help="Folder of the index.")
@option(_WHAT, "--level", metavar="LEVEL", help="sentence, word or token.  [default: the only one stored]")
@option(_WHAT, "--feature", metavar="NAME", help="Such as layer_11.  [default: the only one, or concat_last4]")
@option(_HOW, "--index", default="auto", show_default=True, metavar="FACTORY", help="auto, or as faiss calls it.")
@option(
    _HOW,
    "--metric",
    type=click.Choice(["cosine", "ip", "l2"]),
    default="cosine",
    show_default=True,
    help="Cosine, inner product, or Euclidean distance.",
)
@option(
    _HOW,
    "--transform",
    default="none",
    show_default=True,
    metavar="NAME",
    help="none, center, whiten, whiten:DIM, pca:DIM, truncate:DIM. BERT's vectors have much in common; centring "
    "removes it. truncate keeps the first DIM values, at length 1, for models that were trained for it (Matryoshka).",
)
@option(_HOW, "--query-prompt-name", metavar="NAME", help="Prompt of queries.  [default: the model's query prompt]")
@option(_HOW, "--recall", type=float, default=0.95, show_default=True, help="Part of the ten nearest to be found.")
@option(_HOW, "--tune-queries", metavar="FILE", help="Texts of queries that must find --recall.")
@option(_HOW, "--text-column", metavar="NAME", help="Column of --tune-queries with the text.  [default: text]")
@option(_HOW, "--max-memory", type=ByteSize(), default="4GB", show_default=True, help="To build it, and to hold it.")
@option(_HOW, "--seed", type=int, default=0, show_default=True, help="Random seed.")
@option(RUN, "--threads", type=click.IntRange(min=1), help="Threads to compute on.  [default: all]")
@option(RUN, "--overwrite", is_flag=True, help="Replace an index that is already there.")
@output_options
def build(
    store: str,
    output: str,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    **values: Any,
) -> None:
    """Index the vectors of a store."""
    from bertfeat.cli.search_summary import index_summary, result_line
    from bertfeat.progress import reporting
    from bertfeat.search.storeindex import build_index

    with reporting(False if quiet or as_json else None) as progress:
        index = build_index(store, output, **values, overwrite=overwrite, progress=progress)
    with index:
        if as_json:
            click.echo(json.dumps({**index_summary(index), "was_complete": index.was_complete}))
        elif not quiet:
            click.echo(result_line(index, "already built; nothing to do: " if index.was_complete else ""))


@command.command(name="update")
@click.argument("index", metavar="INDEX")
@click.argument("store", metavar="STORE")
@output_options
def update(index: str, store: str, as_json: bool, quiet: bool) -> None:
    """Add the new rows of a grown store.

    STORE is that of the index after `bertfeat extract --append`, or another one whose first rows are the same. The
    index is tuned and measured again, by the queries of its --tune-queries if there were some: it holds them. It is
    replaced when the new one is whole.
    """
    from bertfeat.cli.search_summary import index_summary, result_line
    from bertfeat.progress import reporting
    from bertfeat.search.storeupdate import update_index

    with reporting(False if quiet or as_json else None) as progress:
        updated = update_index(index, store, progress=progress)
    with updated:
        n_added = updated.n_added
        if as_json:
            click.echo(json.dumps({**index_summary(updated), "n_added": n_added}))
        elif not quiet:
            click.echo(result_line(updated, f"{n_added:,} added: " if n_added else "no new rows; nothing to do: "))


@command.command(name="info")
@click.argument("index", metavar="INDEX")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(index: str, as_json: bool) -> None:
    """Show what an index holds: bertfeat inspect INDEX."""
    show("index", index, as_json=as_json)


@command.command(name="eval")
@click.argument("index", metavar="INDEX")
@click.option("--n-queries", type=click.IntRange(min=1), default=1000, show_default=True, help="Vectors to search for.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed for sampling the queries.")
@click.option("--queries", metavar="FILE", help="Queries with ids: .jsonl, .csv, .tsv, ... Needs --qrels.")
@click.option("--qrels", metavar="FILE", help="Relevant documents of the queries: TREC, BEIR's .tsv, or .jsonl.")
@click.option("--store", metavar="STORE", help="Where the store is now.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    index: str, n_queries: int, seed: int, queries: str | None, qrels: str | None, store: str | None, as_json: bool
) -> None:
    """Measure recall@1, @10 and @100 against exact search, and speed.

    The queries are random vectors of the index; a vector is not counted as a hit for itself. An index that was built
    with --tune-queries is also measured with those of its queries that did not tune it. With --qrels, nDCG@10, MRR@10
    and recall@100 of the file's queries come first.
    """
    if (queries is None) != (qrels is None):
        raise click.UsageError("--queries and --qrels belong together; pass both", click.get_current_context())
    from bertfeat.cli.search_summary import eval_lines, index_summary
    from bertfeat.search.index import open_index
    from bertfeat.search.quality import evaluate_index, evaluate_retrieval

    with open_index(index, store=store) as opened:
        retrieval = None if qrels is None or queries is None else evaluate_retrieval(opened, qrels, queries)
        measured = evaluate_index(opened, n_queries=n_queries, seed=seed)
        summary = index_summary(opened)
    result = {
        "index": index,
        **({} if retrieval is None else {"retrieval": retrieval}),
        **measured,
        **{name: summary[name] for name in ("factory", "bytes_per_vector", "build_s", "tuned_by")},
    }
    click.echo(json.dumps(result) if as_json else "\n".join(eval_lines(result)))
