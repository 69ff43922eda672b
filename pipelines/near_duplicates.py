"""Near-identical documents: clusters of texts whose pooled features have a cosine above a threshold.

    python -m bertfeat.pipelines.near_duplicates --corpus reviews.jsonl -o duplicates --threshold 0.95
    python -m bertfeat.pipelines.near_duplicates --corpus docs.csv --model bert-base-uncased --transform center -o d

An index gives the neighbours of each text; pairs above the threshold are scored exactly and joined, directly or through
others. Scores are cosines with the representative of a cluster, its text with most neighbours. Writes clusters.jsonl,
clusters.parquet and result.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat import Index, build_index, extract
from bertfeat.pipelines._recipe import FILE, Result, features_options, recipe, write
from bertfeat.plots.tables import text_table
from bertfeat.search import QueryFile, TransformSpec

Pairs = npt.NDArray[np.int64]
# Up to this many texts, comparing all is the fastest way.
MAX_FLAT = 20_000
# Neighbours at first, and their growth if all of them are above the threshold.
FIRST_K, GROWTH = 16, 4
# The error of scores from an index that compresses vectors.
SLACK = 0.02
BATCH_SIZE = 1024
N_SHOWN = 20


@recipe(extraction="text_column id_column model")
@click.option("--corpus", type=FILE, required=True, help=".txt, .jsonl, .csv, ...")
@features_options
@click.option("--transform", default="none", show_default=True, help="center, whiten[:DIM], pca:DIM, truncate:DIM.")
@click.option("--threshold", type=click.FloatRange(-1, 1), default=0.95, show_default=True, help="The least cosine.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N documents.")
def main(corpus: str, threshold: float, output: Path, limit: int | None, **options: Any) -> Result:
    """Find clusters of near-identical documents."""
    spec = str(TransformSpec.parse(options.pop("transform")))
    file = QueryFile(corpus, **{name: options.pop(name) for name in ("text_column", "id_column")})
    rows = [(row.query_id, row.text) for batch in file.batches() for row in batch][:limit]
    documents = pl.DataFrame(rows, schema=["doc_id", "text"], orient="row", infer_schema_length=None)
    # The row of a text in the store is its place in `texts`.
    texts = documents["text"].unique(maintain_order=True)
    store = extract(texts.to_frame(), output / "features", levels="sentence", combine="concat", **options)
    feature = store.features("sentence")[0].name
    factory = "Flat" if len(texts) <= MAX_FLAT else "auto"
    # Each index and transform has a folder of its own.
    path = output / "indexes" / re.sub(r"\W+", "-", f"{factory}-{spec}")
    path.parent.mkdir(exist_ok=True)
    how: Any = {"level": "sentence", "feature": feature, "factory": factory, "metric": "cosine", "transform": spec}
    with build_index(store, path, **how) as built:
        candidates = _neighbors(built, threshold)
        numbers = np.unique(candidates)
        vectors = built.prepare(store.take("sentence", feature, numbers))

    def cosines(pairs: Pairs) -> npt.NDArray[np.float64]:
        scores = np.empty(len(pairs))
        for start in range(0, len(pairs), BATCH_SIZE):
            one, other = vectors[np.searchsorted(numbers, pairs[start : start + BATCH_SIZE].T)]
            scores[start : start + BATCH_SIZE] = np.einsum("ij,ij->i", one, other, dtype=np.float64)
        return scores.clip(-1, 1)

    pairs = candidates[cosines(candidates) >= threshold]
    clusters = _table(documents, texts, pairs, cosines)
    write(output / "clusters.parquet", clusters)
    write(output / "clusters.jsonl", clusters)
    n_clusters = clusters["cluster"].n_unique()
    values = {
        "feature": feature,
        "index": factory,
        "n_documents": len(documents),
        "n_texts": len(texts),
        "n_without_tokens": int((~store.valid("sentence", feature)).sum()),
        "n_clusters": n_clusters,
        "n_in_clusters": len(clusters),
        "n_superfluous": len(clusters) - n_clusters,
    }
    return Result(values, _text(values, clusters))


def _neighbors(index: Index, threshold: float) -> Pairs:
    """Return pairs (n, 2) of rows, lower first, that may reach the threshold; an exact index gives all that do."""
    store, feature = index.store, index.spec.feature
    # Flat scores differ from exact ones by rounding only.
    least = threshold - (1e-5 if index.description.factory == "Flat" else SLACK)
    known = store.valid("sentence", feature)
    found = [np.empty((0, 2), np.int64)]
    for batch in store.batches("sentence", feature, batch_size=BATCH_SIZE):
        pending = np.flatnonzero(known[batch.rows.start : batch.rows.stop])
        k = min(FIRST_K, index.n_vectors)
        while len(pending):
            scores, positions = index.nearest(batch.vectors[pending], k)
            near = scores >= least
            # All k are near, and there may be more.
            more = near.sum(axis=1) == (k if k < index.n_vectors else -1)
            query, rank = np.nonzero(near & ~more[:, None])
            rows = index.rows[positions[query, rank]]
            found.append(np.stack([pending[query] + batch.rows.start, rows], axis=1))
            pending, k = pending[more], min(k * GROWTH, index.n_vectors)
    pairs = np.sort(np.concatenate(found), axis=1)
    different: Pairs = np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0)
    return different


def _table(
    documents: pl.DataFrame, texts: pl.Series, pairs: Pairs, cosines: Callable[[Pairs], npt.NDArray[np.float64]]
) -> pl.DataFrame:
    """Return a row for each document in a cluster: largest cluster first, its representative first, then by score."""
    n_near = np.bincount(pairs.ravel(), minlength=len(texts))
    numbered = pl.DataFrame({"text": texts, "root": _roots(len(texts), pairs), "n_near": n_near}).with_columns(
        number=pl.int_range(pl.len())
    )
    best = pl.col("number").sort_by(["n_near", "number"], descending=[True, False]).first().over("root")
    frame = (
        documents.with_row_index("row")
        .join(numbered.with_columns(best.alias("best")), on="text", how="left", maintain_order="left")
        .with_columns(pl.len().over("root").alias("size"), pl.col("row").min().over("root").alias("first"))
        .filter(pl.col("size") > 1)
    )
    ends = frame.select("number", "best").to_numpy()
    differs = ends[:, 0] != ends[:, 1]
    # Equal texts have score 1, without rounding errors.
    scores = np.ones(len(frame))
    scores[differs] = cosines(ends[differs])
    return (
        frame.with_columns(pl.Series("score", scores), pl.Series("differs", differs))
        .sort("size", "first", "differs", "score", "row", descending=[True, False, False, True, False])
        .with_columns(
            (pl.col("root").rle_id() + 1).alias("cluster"),
            (pl.int_range(pl.len()).over("root") == 0).alias("is_representative"),
        )
        .select("cluster", "doc_id", "score", "is_representative", "text")
    )


def _roots(n_texts: int, pairs: Pairs) -> npt.NDArray[np.int64]:
    """Return the lowest text that pairs join with each text, directly or through others."""
    roots = np.arange(n_texts)
    while True:
        low, high = np.sort(roots[pairs], axis=1).T
        if (low == high).all():
            return roots
        np.minimum.at(roots, high, low)
        while (roots[roots] != roots).any():
            roots = roots[roots]


def _text(values: dict[str, Any], clusters: pl.DataFrame) -> str:
    """Return the largest clusters as text."""
    found = f"{values['n_clusters']} clusters with {values['n_in_clusters']} of {values['n_documents']} documents"
    largest = clusters.filter(pl.col("cluster") <= N_SHOWN).group_by("cluster", maintain_order=True).head(5)
    shown = largest.select("cluster", "score", "doc_id", pl.col("text").str.head(80))
    return f"{found}; {values['n_superfluous']} could go\n{text_table(shown.columns, shown.rows())}"


if __name__ == "__main__":
    main()
