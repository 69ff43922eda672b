"""`bertfeat index`: build an index of a store's vectors, add to it, measure it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertfeat.cli import options
from bertfeat.display import counted, facts

if TYPE_CHECKING:
    from bertfeat.ann.description import IndexDescription
    from bertfeat.search.index import Index

# What the result of a build shows.
_OF_A_BUILD = (
    *("index", "n_vectors", "level", "feature", "model", "factory", "parameters", "metric", "transform"),
    *("index_dim", "n_bytes", "measured", "tuned_by", "build_s"),
)


@click.group(name="index")
def index() -> None:
    """Build, update and measure indexes, which find the most similar rows of a store."""


@index.command(
    name="build",
    cls=options.GroupedCommand,
    common="output overwrite level feature factory metric transform recall tune_queries max_memory as_json",
)
@click.argument("store", metavar="STORE")
@options.writes("INDEX", "Folder of the index.")
@options.value("What", "--level", "LEVEL", "sentence, word or token.  [default: the only one stored]")
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
    """  # noqa: D301
    from bertfeat.progress import reporting
    from bertfeat.search.storeindex import build_index

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
    from bertfeat.search.storeupdate import update_index

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
@options.value("Run", "--store", "STORE", "Where the store is now.")
@options.prints
def evaluate(
    index: str, n_queries: int, seed: int, queries: str | None, qrels: str | None, store: str | None
) -> dict[str, Any]:
    """Measure recall@1, @10 and @100 against exact search, and speed.

    The queries are random vectors of the index; a vector is not counted as a hit for itself. An index that was built
    with --tune-queries is also measured with those of its queries that did not tune it. With --qrels, nDCG@10, MRR@10
    and recall@100 of the file's queries come first.
    """
    if (queries is None) != (qrels is None):
        raise click.UsageError("--queries and --qrels belong together; pass both", click.get_current_context())
    from bertfeat.search.index import open_index
    from bertfeat.search.quality import evaluate_index, evaluate_retrieval

    with open_index(index, store=store) as opened:
        retrieval = None if qrels is None or queries is None else evaluate_retrieval(opened, qrels, queries)
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
    from bertfeat.ann.description import INDEX
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
    # The fields of the origin are in the summary itself.
    del values["source"]
    return values
