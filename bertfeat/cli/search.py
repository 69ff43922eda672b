"""`bertfeat index`, `search` and `serve`: build and measure an index of a store's vectors, and find what is similar."""

from __future__ import annotations

import contextlib
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bertfeat.cli import options
from bertfeat.display import counted, facts
from bertfeat.errors import BertfeatWarning, require

if TYPE_CHECKING:
    from bertfeat.ann.description import IndexDescription
    from bertfeat.search.index import Index

# What the result of a build shows.
_OF_A_BUILD = (
    *("index", "n_vectors", "level", "feature", "model", "factory", "parameters", "metric", "transform"),
    *("index_dim", "rerank", "n_bytes", "measured", "tuned_by", "build_s"),
)
_QUERY, _FILTER, _OUTPUT = "Query", "Which rows may be found", "Output"
_RERANKING = options.together(
    options.choice(
        *("Order of the hits", "--rerank", ("none", "maxsim", "idf", "mixed")),
        "Score to order hits by.  [default: mixed, if INDEX has tokens]",
        optional=True,
    ),
    options.value("Order of the hits", "--candidates", "N", "Best hits to order again, or all.  [default: 100]"),
)


@click.group(name="index")
def index() -> None:
    """Build, update and measure indexes, which find the most similar rows of a store."""


@index.command(
    name="build",
    cls=options.GroupedCommand,
    common="output overwrite level feature factory metric transform recall tune_queries rerank max_memory as_json",
)
@click.argument("store", metavar="STORE")
@options.writes("INDEX", "Folder of the index.")
@options.value("What", "--level", "LEVEL", "sentence, word or token.  [default: the one stored, or sentence]")
@options.value("What", "--feature", "NAME", "Such as layer_11.  [default: the only one, or concat_last4]")
@options.value("How", "--factory", "NAME", "auto, or as faiss calls it.", "auto")
@options.choice("How", "--metric", ("cosine", "ip", "l2"), "Cosine, inner product, or Euclidean distance.")
@options.value(
    *("How", "--transform", "NAME"),
    "none, center, whiten, whiten:DIM, pca:DIM, truncate:DIM. BERT's vectors have much in common; centering removes "
    "it. truncate keeps the first DIM values, at length 1, for models that were trained for it (Matryoshka).",
    "none",
)
@options.value("How", "--query-prompt-name", "NAME", "Prompt of queries.  [default: the model's query prompt]")
@options.option(
    "How", "--recall", type=float, metavar="R", default=0.95, show_default=True, help="Share of the nearest to find."
)
@options.value("How", "--tune-queries", "FILE", "File of queries that must find --recall.")
@options.value("How", "--text-column", "NAME", "Column of --tune-queries with the text.  [default: text]")
@options.value("How", "--rerank", "LEVEL:FEATURE", "Rows to order the best hits by, such as token:layer_06.")
@options.choice(
    "How", "--codes", ("bit", "int8", "float16"), "How their values are stored.  [default: bit]", optional=True
)
@options.size("How", "--max-memory", "4GB", "To build it, and to hold it.")
@options.count("How", "--seed", 0, "Random seed.")
@options.count("Run", "--threads", None, "Threads to compute on.  [default: all]", least=1)
def build(store: str, output: str, overwrite: bool, factory: str, **values: Any) -> options.Printed:
    """Index the vectors of a store, so that `bertfeat search` finds the nearest ones.

    Run the same command again to resume; on a finished index it does nothing. The memory is estimated before anything
    is read: an index that does not fit is refused, and the best one that fits is named.

    --factory auto searches exactly up to 16.8 million values (43,000 vectors of 384). Larger collections use inverted
    lists; the number that a search reads is tuned until it finds --recall of the ten nearest, for random vectors of the
    index or with --tune-queries for queries like those to come. Or name one as faiss does: Flat, HNSW32, IVF1024,SQ8.

    \b
    Examples:
      bertfeat index build features -o sentences.index --level sentence --transform center
      bertfeat index build features -o sentences.index --rerank token:layer_06
    """  # noqa: D301
    from bertfeat.progress import reporting
    from bertfeat.search.build import build_index

    with reporting(options.watched()) as progress:
        built = build_index(store, output, factory=factory, **values, overwrite=overwrite, progress=progress)
    result = "already built; nothing to do" if built.was_complete else None
    return _printed(built, result, was_complete=built.was_complete)


@index.command(name="update", cls=options.GroupedCommand)
@click.argument("index", metavar="INDEX")
@click.argument("store", metavar="STORE")
@options.prints
def update(index: str, store: str) -> options.Printed:
    """Add the new rows of a grown store.

    STORE is that of the index after `bertfeat extract --append`, or another one whose first rows are the same. The
    index is tuned and measured again, by the queries of its --tune-queries if there were some: it holds them. It is
    replaced when the new one is whole.
    """
    from bertfeat.progress import reporting
    from bertfeat.search.update import update_index

    with reporting(options.watched()) as progress:
        updated = update_index(index, store, progress=progress)
    n_added = updated.n_added
    result = f"{counted(n_added, 'vector')} added" if n_added else "no new rows; nothing to do"
    return _printed(updated, result, n_added=n_added)


def _printed(index: Index, result: str | None, **more: Any) -> options.Printed:
    with index:
        summary = index_summary(index.path, index.description)
    shown = {"result": result, **{name: summary[name] for name in _OF_A_BUILD}}
    return options.Printed({**summary, **more}, facts(shown))


@index.command(name="eval", cls=options.GroupedCommand)
@click.argument("index", metavar="INDEX")
@options.count("Run", "--n-queries", 1000, "Vectors to search for.", least=1)
@options.count("Run", "--seed", 0, "Seed for sampling the queries.")
@options.value("Run", "--queries", "FILE", "Queries with ids: .jsonl, .csv, .tsv, ... Needs --qrels.")
@options.value("Run", "--qrels", "FILE", "Relevant documents of the queries: TREC, BEIR's .tsv, or .jsonl.")
@_RERANKING
@options.value("Run", "--store", "STORE", "Where the store is now.")
@options.prints
def evaluate(
    index: str, n_queries: int, seed: int, queries: str | None, qrels: str | None, store: str | None, **reranking: Any
) -> dict[str, Any]:
    """Measure recall@1, @10 and @100 against exact search, and speed.

    The queries are random vectors of the index; a vector is not counted as a hit for itself. An index that was built
    with --tune-queries is also measured with those of its queries that did not tune it. With --qrels, nDCG@10, MRR@10
    and recall@100 of the file's queries come first; where hits are reranked, beside those of the vectors alone.
    """
    if (queries is None) != (qrels is None):
        raise click.UsageError("--queries and --qrels belong together; pass both", click.get_current_context())
    if qrels is None:
        options.refuse_given(("rerank", "candidates"), "is for --qrels FILE")
    from bertfeat.search.evaluation import evaluate_index, evaluate_retrieval
    from bertfeat.search.index import open_index

    with open_index(index, store=store) as opened:
        retrieval = (
            None if qrels is None or queries is None else evaluate_retrieval(opened, qrels, queries, **reranking)
        )
        measured = evaluate_index(opened, n_queries=n_queries, seed=seed)
        summary = index_summary(opened.path, opened.description)
    return {
        "index": index,
        "retrieval": retrieval,
        **measured,
        **{name: summary[name] for name in ("factory", "bytes_per_vector", "build_s", "tuned_by")},
    }


def index_summary(path: Path, description: IndexDescription) -> dict[str, Any]:
    """Return the description of an index as JSON values."""
    from bertfeat.ann.description import CODES, INDEX
    from bertfeat.durable.records import to_values
    from bertfeat.search.origin import Origin

    origin, n_bytes = Origin.at(description), description.files[INDEX].n_bytes
    values = {
        "index": str(path),
        **to_values(description),
        **to_values(origin),
        "index_dim": description.index_dim,
        "level": str(origin.spec.level),
        "feature": origin.spec.feature,
        "model": origin.spec.model,
        "recall_at_10": description.measured.get("recall_at_10"),
        "n_bytes": n_bytes,
        "bytes_per_vector": round(n_bytes / max(description.n_vectors, 1), 2),
        "build_s": round(sum(description.seconds.values()), 3),
    }
    if (tokens := origin.rerank) is not None:
        sizes = {"n_tokens": tokens.n_tokens, "n_bytes": description.files[CODES].n_bytes}
        values["rerank"] = {"feature": tokens.named, "codes": tokens.codes, **sizes}
    # The fields of the origin are in the summary itself.
    del values["source"]
    return values


@click.command(
    name="search",
    cls=options.GroupedCommand,
    common="k queries where same_word exclude_same_word group_by rerank candidates output columns context full as_json",
)
@click.argument("index", metavar="INDEX")
@click.argument("text", metavar="[TEXT]", required=False)
@options.option(
    _QUERY, "-k", "k", type=int, default=10, show_default=True, metavar="N", help="How many to find at most."
)
@options.value(
    _QUERY, "--queries", "FILE", "Search for each text of a .jsonl, .csv, ...: needs -o. Or -: lines of stdin."
)
@options.value(_QUERY, "--text-column", "NAME", "Its column with the text.", "text")
@options.value(_QUERY, "--id-column", "NAME", "Its column with the id.  [default: id, _id or query_id, if there]")
@_RERANKING
@options.value(_FILTER, "--where", "SQL", "Condition on columns of the store: \"label = 'x' AND n_tokens > 3\".")
@options.switch(_FILTER, "--same-word", "Only the marked word itself, in upper or lower case.")
@options.switch(_FILTER, "--exclude-same-word", "Only other words.")
@options.value(_FILTER, "--group-by", "COLUMN", "Only the best hit of each value: doc_id for the best passages.")
@options.option(_OUTPUT, "-o", "--output", metavar="FILE", help="File for the hits of --queries: .parquet or .csv.")
@options.switch(_OUTPUT, "--overwrite", "Replace the file of --output.")
@options.value(_OUTPUT, "--columns", "A,B", "Further columns of the store to show.")
@options.count(_OUTPUT, "--context", 40, "Columns of text around a word.")
@options.switch(_OUTPUT, "--full", "Whole lines; otherwise a terminal shows what fits its width.")
@options.output_options
@options.value(_QUERY, "--store", "STORE", "Where the store is now.")
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
        options.refuse_given(("output", "text_column", "id_column", "overwrite"), "is for --queries FILE")
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

        _check_context(opened, is_file=is_file)
        if text is not None:
            for line in hit_lines(opened, text, settings):
                click.echo(line)
        elif queries == "-":
            answer_queries(opened, settings)
        elif queries is not None:
            search_file(opened, queries, settings)


def _check_context(index: Index, *, is_file: bool) -> None:
    """Warn if `--context` is given and has no effect."""
    is_given = click.get_current_context().get_parameter_source("context") is ParameterSource.COMMANDLINE
    if is_given and (is_file or not index.has_contexts):
        what = "a file of hits" if is_file else f"{index.path}, which holds whole texts"
        warnings.warn(BertfeatWarning(f"`context` has no effect on {what}"), stacklevel=1)


@click.command(name="serve", cls=options.GroupedCommand)
@click.argument("index", metavar="INDEX")
@options.count("Run", "--port", 8000, "Port on 127.0.0.1; 0 takes a free one.", most=65535)
@options.value("Run", "--store", "STORE", "Where the store is now.")
@options.output_options
def serve(index: str, port: int, store: str | None, as_json: bool, quiet: bool) -> None:
    """Search INDEX in a browser: a page on 127.0.0.1, which only this machine can open.

    The page has filters on the columns of the corpus, and for each hit a link to what is most similar to it. GET
    /api/search?q=TEXT&k=10 answers in JSON, with the fields of `bertfeat search --json`; /api/info describes the index.
    Ctrl-C ends it.
    """
    require("jinja2", "starlette", "uvicorn", what="the search page needs")
    from bertfeat.search.index import open_index
    from bertfeat.serve import page as serve_page

    with open_index(index, store=store) as opened:
        summary = index_summary(opened.path, opened.description)

        def ready(address: str) -> None:
            about = f"{opened.path}: {summary['n_vectors']:,} vectors of {summary['dim']} dimensions"
            text = f"{about}\n{address}  (Ctrl-C ends it)"
            options.show(options.Printed({"address": address, **summary}, text), as_json=as_json, quiet=quiet)

        # SIGTERM ends it as Ctrl-C does: the index is closed, and the exit code is 0.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            serve_page.serve(opened, summary, port, ready)
