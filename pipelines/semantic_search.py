"""Comparison of features for search: layers, poolings and transforms, on queries whose answers are known.

    python -m bertfeat.pipelines.semantic_search --corpus xquad.en.json --out xquad  # SQuAD: question, paragraph
    python -m bertfeat.pipelines.semantic_search --corpus corpus.jsonl --queries queries.jsonl --qrels q.tsv --out docs
    python -m bertfeat.pipelines.semantic_search --corpus docs.csv --queries queries.tsv --qrels qrels.txt --out docs \
        --layers 4..6 --poolings mean --transforms none,center,whiten:128 --limit 5000

Documents and queries are encoded once for each pooling; search is exact, by cosine, and transforms are fitted to the
documents, as `bertfeat index build --transform` does. With `--include-special-tokens --max-length 256 --on-overlong
truncate`, MiniLM's last layer under `mean` and `none` is what sentence-transformers computes.
Writes table.txt, table.csv, plot.png, plot.svg and result.json.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

import bertfeat
from bertfeat.errors import UserError
from bertfeat.pipelines._options import config_of_pooling, recipe, refuse_given, warn_of_poolings
from bertfeat.pipelines._outputs import write
from bertfeat.reports.plots import LayerScores, ScoreBar, plot_layer_scores
from bertfeat.reports.tables import text_table, write_csv

POOLINGS = ("mean", "max", "cls", "lasttoken", "weightedmean", "pooler", "model")
MEASURES = ("ndcg@10", "mrr@10", "recall@10", "recall@100")
N_HITS = 100


@dataclass(frozen=True)
class Task:
    """Texts by id, and the grade of each judged document by query."""

    documents: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]


@recipe("matplotlib")
@click.option(
    "--corpus", type=click.Path(exists=True, dir_okay=False), required=True, help="Documents, or SQuAD .json."
)
@click.option("--queries", type=click.Path(exists=True, dir_okay=False), help="Queries; like the corpus, with an id.")
@click.option("--qrels", type=click.Path(exists=True, dir_okay=False), help="Relevance: TREC, BEIR .tsv, or .jsonl.")
@click.option("--text-column", default="text", show_default=True, help="Of the corpus and the queries.")
@click.option("--id-column", help="Of both; by default id, _id, or query_id.")
@click.option("--model", default="minilm", show_default=True, help="Installed model package, folder, or hub id.")
@click.option("--layers", default="all", show_default=True, help="Such as all, 4..6, or 0,6.")
@click.option("--poolings", default="mean,max,cls", show_default=True, help=f"Of {', '.join(POOLINGS)}.")
@click.option("--query-prompt", help="Text before each query.")
@click.option("--document-prompt", help="Text before each document.")
@click.option(
    "--transforms", default="none,center,whiten", show_default=True, help="Also whiten:DIM, pca:DIM, truncate:DIM."
)
@click.option("--include-special-tokens", is_flag=True, help="[CLS] and [SEP] count in mean and max.")
@click.option("--max-length", type=click.IntRange(min=3), help="Tokens of a window; by default what the model takes.")
@click.option("--on-overlong", type=click.Choice(["window", "truncate", "error"]), default="window", show_default=True)
@click.option("--out", type=click.Path(file_okay=False), required=True, help="Folder of the results.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N documents, and queries about them.")
def main(
    corpus: str,
    queries: str | None,
    qrels: str | None,
    text_column: str,
    id_column: str | None,
    model: str,
    layers: str,
    poolings: str,
    query_prompt: str | None,
    document_prompt: str | None,
    transforms: str,
    include_special_tokens: bool,
    max_length: int | None,
    on_overlong: str,
    out: str,
    limit: int | None,
) -> None:
    """Search a corpus with each layer, pooling and transform, and rank these by what they find."""
    started = time.perf_counter()
    folder = Path(out)
    chosen = _poolings(poolings)
    specs = [bertfeat.TransformSpec.parse(name.strip()) for name in transforms.split(",")]
    settings: dict[str, Any] = {"model": model, "layers": layers, "on_overlong": on_overlong, "max_length": max_length}
    settings["include_special_tokens"] = include_special_tokens
    warn_of_poolings(chosen, {**settings, "levels": "sentence"})
    if Path(corpus).suffix == ".json":
        refuse_given(("text_column", "id_column"), "is for columns; a SQuAD file has none")
    task = _read_task(corpus, queries, qrels, text_column, id_column)
    task = _judged(task if limit is None else _first(task, limit))
    paths = _write_corpora(task, folder / "corpus")
    prompts = {"documents": document_prompt, "queries": query_prompt}
    rows: list[dict[str, Any]] = []
    skipped: set[str] = set()
    stores: dict[str, bertfeat.Store] = {}
    for pooling in chosen:
        stores = {
            name: _extract(path, folder / "features", pooling, {**settings, "prompt": prompts[name]})
            for name, path in paths.items()
        }
        for feature in stores["documents"].features("sentence"):
            described = {"layer": feature.layers[0], "pooling": pooling}
            for spec, found in _measure(stores, feature.name, specs, task.qrels, skipped):
                rows.append({**described, "transform": str(spec), **found})
                click.echo(f"layer {feature.layers[0]}, {pooling}, {spec}: {_scores(rows[-1])}", err=True)
    rows.sort(key=lambda row: [-row[name] for name in MEASURES])
    result = {
        "pipeline": "semantic_search",
        "corpus": Path(corpus).name,
        "model": stores["documents"].metadata["model"],
        "settings": {**settings, "prompts": prompts},
        "limit": limit,
        "n_documents": len(task.documents),
        "n_queries": len(task.queries),
        "rows": rows,
        "skipped": sorted(skipped),
        "seconds": time.perf_counter() - started,
    }
    _write(folder, result)
    for reason in sorted(skipped):
        click.echo(f"left out: {reason}", err=True)
    click.echo((folder / "table.txt").read_text(encoding="utf-8"), nl=False)


def _poolings(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in POOLINGS:
            raise click.UsageError(f"--poolings {name!r} is not one of {', '.join(POOLINGS)}")
    return names


def _read_task(corpus: str, queries: str | None, qrels: str | None, text_column: str, id_column: str | None) -> Task:
    """Read documents, queries and judgements, from one SQuAD file or from three."""
    if Path(corpus).suffix == ".json":
        if queries or qrels:
            raise click.UsageError(f"{corpus} is read as SQuAD, which holds its queries; drop --queries and --qrels")
        return _read_squad(Path(corpus))
    if not (queries and qrels):
        raise click.UsageError("pass --queries and --qrels; only a SQuAD .json file needs neither")
    documents, questions = (_read_texts(path, text_column, id_column) for path in (corpus, queries))
    task = Task(documents, questions, bertfeat.read_qrels(qrels))
    wanted = {document for grades in task.qrels.values() for document in grades}
    if not wanted & task.documents.keys():
        raise UserError(
            f"{qrels}: none of the {len(wanted)} judged documents is in {corpus}: no {min(wanted)!r} among ids such as "
            f"{min(task.documents)!r}; pass --id-column"
        )
    return task


def _read_texts(path: str, text_column: str, id_column: str | None) -> dict[str, str]:
    file = bertfeat.QueryFile(path, text_column=text_column, id_column=id_column)
    return {str(row.query_id): row.text for batch in file.batches() for row in batch}


def _read_squad(path: Path) -> Task:
    """Read SQuAD or XQuAD: paragraphs are documents, questions are queries, each about its own paragraph."""
    task = Task({}, {}, {})
    ids: dict[str, str] = {}
    try:
        for n_article, article in enumerate(json.loads(path.read_bytes())["data"]):
            for n_paragraph, paragraph in enumerate(article["paragraphs"]):
                # A repeated paragraph is one document, because a search cannot tell the copies apart.
                document = ids.setdefault(paragraph["context"], f"{n_article}-{n_paragraph}")
                task.documents[document] = paragraph["context"]
                for question in paragraph["qas"]:
                    task.queries[str(question["id"])] = question["question"]
                    task.qrels[str(question["id"])] = {document: 1}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a SQuAD file ({type(error).__name__}: {error}); other corpora are .jsonl, .csv, .tsv or .txt"
        ) from error
    return task


def _first(task: Task, n_documents: int) -> Task:
    """Keep the first documents, and what is judged of them."""
    documents = dict(list(task.documents.items())[:n_documents])
    qrels = {
        query: {document: grade for document, grade in grades.items() if document in documents}
        for query, grades in task.qrels.items()
    }
    return Task(documents, task.queries, qrels)


def _judged(task: Task) -> Task:
    """Keep the queries that have a relevant document: nothing can be measured on others."""
    qrels = {query: grades for query, grades in task.qrels.items() if any(grade > 0 for grade in grades.values())}
    if not qrels:
        raise UserError(
            f"none of {len(task.documents)} documents is relevant to a query; raise --limit, or check --qrels"
        )
    unknown = [query for query in qrels if query not in task.queries]
    if unknown:
        raise UserError(
            f"{len(unknown)} judged queries have no text, {unknown[0]!r} among them; ids are such as "
            f"{next(iter(task.queries))!r}; pass --id-column, or the file with all queries"
        )
    return Task(task.documents, {query: text for query, text in task.queries.items() if query in qrels}, qrels)


def _write_corpora(task: Task, folder: Path) -> dict[str, Path]:
    paths = {}
    for name, texts in (("documents", task.documents), ("queries", task.queries)):
        paths[name] = folder / f"{name}.jsonl"
        lines = (json.dumps({"id": id_, "text": text}) + "\n" for id_, text in texts.items())
        write(paths[name], "".join(lines))
    return paths


def _extract(path: Path, folder: Path, pooling: str, settings: dict[str, Any]) -> bertfeat.Store:
    """Encode texts once, with a column for each layer; a second run finds the store complete."""
    own = {"id_column": "id", "levels": "sentence", "combine": "none"}
    config = config_of_pooling(pooling, {**own, **settings})
    return bertfeat.extract(path, folder / f"{path.stem}-{pooling}", config)


def _measure(
    stores: dict[str, bertfeat.Store],
    feature: str,
    specs: list[bertfeat.TransformSpec],
    qrels: dict[str, dict[str, int]],
    skipped: set[str],
) -> list[tuple[bertfeat.TransformSpec, dict[str, float]]]:
    """Search with one feature and each transform; leave out those that cannot be fitted, with the reason."""
    documents, queries = stores["documents"], stores["queries"]
    known = documents.valid("sentence", feature)
    if _all_same(documents, feature, known):
        # For example [CLS] before the first block: no order of the documents means anything.
        skipped.add(f"{feature}, {documents.metadata['pooling']}: all documents have the same vector")
        return []
    ids = {name: store.polars("sentence", ["doc_id"])["doc_id"].to_list() for name, store in stores.items()}
    # A text without tokens has no vector.
    asked = np.flatnonzero(queries.valid("sentence", feature))
    vectors = queries.numpy("sentence", feature)[asked]
    measures = []
    for spec in specs:
        try:
            spec.check(documents.feature("sentence", feature).dim, int(known.sum()))
        except UserError as error:
            skipped.add(str(error))
            continue
        _, rows = bertfeat.nearest_rows(documents, vectors, N_HITS, feature=feature, transform=str(spec))
        ranked = {
            ids["queries"][query]: [ids["documents"][row] for row in found if row >= 0]
            for query, found in zip(asked.tolist(), rows.tolist(), strict=True)
        }
        measured = bertfeat.retrieval_metrics(ranked, qrels, ks=(10, N_HITS))
        measures.append((spec, {name: measured[name] for name in MEASURES}))
    return measures


def _all_same(store: bertfeat.Store, feature: str, known: npt.NDArray[np.bool_]) -> bool:
    first = np.empty((0, 1))
    for batch in store.batches("sentence", feature):
        vectors = batch.vectors[known[batch.rows.start : batch.rows.stop]]
        first = first if len(first) else vectors[:1]
        if (vectors != first).any():
            return False
    return True


def _scores(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {row[name]:.4f}" for name in MEASURES)


def _write(folder: Path, result: dict[str, Any]) -> None:
    """Write the table, best first, the plot of nDCG against layer, and all of it as JSON."""
    rows = result["rows"]
    if not rows:
        raise UserError(f"{result['corpus']}: there is nothing to compare: {'; '.join(result['skipped'])}")
    headers = ["layer", "pooling", "transform", *MEASURES]
    cells = [[row[name] for name in headers] for row in rows]
    write(folder / "table.txt", text_table(headers, cells) + "\n")
    write_csv(folder / "table.csv", headers, cells)
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        best.setdefault((row["pooling"], row["transform"]), row)
    drawn, *others = best
    series = LayerScores(
        metric="nDCG@10",
        layers={row["layer"]: ScoreBar(row["ndcg@10"]) for row in rows if (row["pooling"], row["transform"]) == drawn},
        combinations={f"{p}, {t}: layer {best[p, t]['layer']}": ScoreBar(best[p, t]["ndcg@10"]) for p, t in others},
        title=f"{result['corpus']}, {result['model']}: {', '.join(drawn)}; others at their best layer",
    )
    plot_layer_scores(series, folder / "plot")
    write(folder / "result.json", result)


if __name__ == "__main__":
    with bertfeat.report_failures(main):
        main(standalone_mode=False)
