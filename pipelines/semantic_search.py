"""Comparison of features for search: layers, poolings and transforms, on queries whose answers are known.

    python -m bertfeat.pipelines.semantic_search --corpus xquad.en.json -o xquad  # SQuAD: question, paragraph
    python -m bertfeat.pipelines.semantic_search --corpus corpus.jsonl --queries queries.jsonl --qrels q.tsv -o docs

Search is exact, by cosine, and transforms are fitted to the documents. Writes table.txt, table.csv and result.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl

from bertfeat import ExtractConfig, Store, extract
from bertfeat.errors import UserError
from bertfeat.pipelines._answering import read_articles
from bertfeat.pipelines._recipe import FILE, Result, recipe, write
from bertfeat.plots.tables import text_table, write_csv
from bertfeat.search import QueryFile, TransformSpec, nearest_rows, read_qrels, retrieval_metrics

MEASURES = ("ndcg@10", "mrr@10", "recall@10", "recall@100")
N_HITS = 100
# Documents and queries: texts by id. Judgements: by query, the grade of each document.
Texts = dict[str, str]
Qrels = dict[str, dict[str, int]]


@recipe(extraction="text_column id_column model include_special_tokens max_length on_overlong")
@click.option("--corpus", type=FILE, required=True, help="Texts, or SQuAD .json.")
@click.option("--queries", type=FILE, help="Queries; like the corpus, with an id.")
@click.option("--qrels", type=FILE, help="Relevance: TREC, BEIR .tsv, or .jsonl.")
@click.option("--layers", default="all", show_default=True, help="Such as all, 4..6, or 0,6.")
@click.option("--poolings", default="mean,max,cls", show_default=True, help="Also lasttoken, pooler, model, ...")
@click.option("--query-prompt", help="Text before each query.")
@click.option("--document-prompt", help="Text before each document.")
@click.option("--transforms", default="none,center,whiten", show_default=True, help="Also whiten:DIM, pca:DIM.")
def main(corpus: str, output: Path, **options: Any) -> Result:
    """Search a corpus with each layer, pooling and transform, and rank these by what they find."""
    chosen = list(dict.fromkeys(name.strip() for name in options.pop("poolings").split(",")))
    specs = [TransformSpec.parse(name.strip()) for name in options.pop("transforms").split(",")]
    prompts = {"documents": options.pop("document_prompt"), "queries": options.pop("query_prompt")}
    columns = {name: options.pop(name) for name in ("text_column", "id_column")}
    documents, questions, judged = _read(corpus, options.pop("queries"), options.pop("qrels"), columns)
    judged = _judged(documents, questions, judged)
    asked = {query: text for query, text in questions.items() if query in judged}
    rows: list[dict[str, Any]] = []
    skipped: set[str] = set()
    stores: dict[str, Store] = {}
    for pooling in chosen:
        for name, texts in {"documents": documents, "queries": asked}.items():
            own = {"id_column": "id", "levels": "sentence", "combine": "none", "prompt": prompts[name]}
            frame = pl.DataFrame({"id": list(texts), "text": list(texts.values())})
            # What this pooling ignores, another may need.
            config = ExtractConfig.from_dict({**own, **options, "pooling": pooling}).effective()
            stores[name] = extract(frame, output / "features" / f"{name}-{pooling}", config)
        for feature in stores["documents"].features("sentence"):
            for spec, found in _measure(stores, feature.name, specs, judged, skipped):
                rows.append({"layer": feature.layers[0], "pooling": pooling, "transform": spec, **found})
    rows.sort(key=lambda row: [-row[name] for name in MEASURES])
    if not rows:
        raise UserError(f"{Path(corpus).name}: there is nothing to compare: {'; '.join(sorted(skipped))}")
    for reason in sorted(skipped):
        click.echo(f"left out: {reason}", err=True)
    values = {"n_documents": len(documents), "n_queries": len(asked), "rows": rows, "skipped": sorted(skipped)}
    headers = ["layer", "pooling", "transform", *MEASURES]
    cells = [[row[name] for name in headers] for row in rows]
    table = text_table(headers, cells)
    write(output / "table.txt", table + "\n")
    write_csv(output / "table.csv", headers, cells)
    return Result(values, table)


def _read(corpus: str, queries: str | None, qrels: str | None, columns: dict[str, Any]) -> tuple[Texts, Texts, Qrels]:
    """Read documents, queries and judgements, from one SQuAD file or from three."""
    is_squad = Path(corpus).suffix == ".json"
    if is_squad != (queries is None) or is_squad != (qrels is None):
        raise click.UsageError("pass --queries and --qrels; a SQuAD .json file alone holds its own")
    if queries is None or qrels is None:
        return _read_squad(corpus)
    documents, questions = (
        {str(row.query_id): row.text for batch in QueryFile(path, **columns).batches() for row in batch}
        for path in (corpus, queries)
    )
    return documents, questions, read_qrels(qrels)


def _read_squad(path: str) -> tuple[Texts, Texts, Qrels]:
    """Read SQuAD or XQuAD: paragraphs are documents, questions are queries, each about its own paragraph."""
    ids: dict[str, str] = {}
    queries: Texts = {}
    qrels: Qrels = {}
    for n_article, paragraphs in enumerate(read_articles(path)):
        for n_paragraph, paragraph in enumerate(paragraphs):
            # A repeated paragraph is one document, because a search cannot tell the copies apart.
            document = ids.setdefault(paragraph.context, f"{n_article}-{n_paragraph}")
            for question in paragraph.qas:
                queries[str(question.id)] = question.question
                qrels[str(question.id)] = {document: 1}
    return {document: text for text, document in ids.items()}, queries, qrels


def _judged(documents: Texts, queries: Texts, qrels: Qrels) -> Qrels:
    """Return the judgements of queries that have a relevant document: nothing can be measured on others."""
    judged = {query: grades for query, grades in qrels.items() if any(grade > 0 for grade in grades.values())}
    if not any(documents.keys() & grades for grades in judged.values()):
        said = f"none of {len(documents)} documents is relevant to a query, such as {next(iter(documents), None)!r}"
        raise UserError(f"{said}; pass --id-column, or check --qrels")
    if unknown := [query for query in judged if query not in queries]:
        raise UserError(f"{len(unknown)} judged queries have no text, such as {unknown[0]!r}; pass all, or --id-column")
    return judged


def _measure(
    stores: dict[str, Store], feature: str, specs: list[TransformSpec], qrels: Qrels, skipped: set[str]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Search with one feature and each transform; leave out those that cannot be fitted, with the reason."""
    documents, queries = stores["documents"], stores["queries"]
    known = documents.valid("sentence", feature)
    first = documents.take("sentence", feature, np.flatnonzero(known)[:1])
    batches = documents.batches("sentence", feature)
    if all((batch.vectors[known[batch.rows.start : batch.rows.stop]] == first).all() for batch in batches):
        # For example [CLS] before the first block: no order of the documents means anything.
        skipped.add(f"{feature}, {documents.metadata['pooling']}: all documents have the same vector")
        return
    ids = {name: store.polars("sentence", ["doc_id"])["doc_id"].to_list() for name, store in stores.items()}
    # A text without tokens has no vector.
    asked = np.flatnonzero(queries.valid("sentence", feature))
    vectors = queries.numpy("sentence", feature)[asked]
    for spec in specs:
        try:
            spec.check(documents.feature("sentence", feature).dim, int(known.sum()))
        except UserError as error:
            skipped.add(str(error))
            continue
        _, rows = nearest_rows(documents, vectors, N_HITS, feature=feature, transform=str(spec))
        ranked = {
            ids["queries"][query]: [ids["documents"][row] for row in found if row >= 0]
            for query, found in zip(asked.tolist(), rows.tolist(), strict=True)
        }
        measured = retrieval_metrics(ranked, qrels, ks=(10, N_HITS))
        yield str(spec), {name: measured[name] for name in MEASURES}


if __name__ == "__main__":
    main()
