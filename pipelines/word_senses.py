"""The senses of a word: its occurrences in a corpus, clustered by context, with examples and a plot.

    python -m bertfeat.pipelines.word_senses --corpus corpus.txt --word bank -o bank
    python -m bertfeat.pipelines.word_senses --store bank/features --word spring -o spring

Centred vectors of unit length are clustered by k-means; the number of senses has the highest silhouette. Middle layers
are best: 7 to 9 of BERT-base's 12. Writes senses.csv, examples.txt, plot.png, plot.svg and result.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat import Store, extract, open_store
from bertfeat.errors import UserError
from bertfeat.pipelines._recipe import FILE, Result, recipe, write
from bertfeat.plots.charts import plot_points
from bertfeat.search import Context, words_in_context

Vectors = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
N_EXAMPLES, N_WORDS = 5, 8
# The most occurrences, drawn at random, and the most senses to try.
N_OCCURRENCES, MAX_SENSES = 1000, 8
# Columns of text, and words of context, on either side of an occurrence.
WIDTH, REACH = 50, 10
# Words of one sense have a lower silhouette, for any number of occurrences.
LEAST_SILHOUETTE = 0.12
# Random clouds to compare with: one sense is taken for several in one case of 20.
N_CLOUDS = 19
# The fewest occurrences per sense, on average.
MEAN_SIZE = 4


@recipe("sklearn", "matplotlib", extraction="text_column model")
@click.option("--word", required=True, help="The word, in upper or lower case.")
@click.option("--corpus", type=FILE, help="Texts: .txt, .jsonl, .csv, .conllu, ...")
@click.option("--store", "store_path", type=click.Path(exists=True, file_okay=False), help="Or: words already encoded.")
@click.option("--layer", type=click.IntRange(min=0), default=4, show_default=True, help="0 is the embeddings.")
@click.option("--senses", type=click.IntRange(min=1), help="How many; by default the number of best silhouette.")
def main(word: str, corpus: str | None, store_path: str | None, layer: int, output: Path, **options: Any) -> Result:
    """Cluster the occurrences of a word by their context, and show the clusters."""
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    senses = options.pop("senses")
    if store_path is not None and corpus is None:
        store = open_store(store_path)
    elif corpus is not None and store_path is None:
        # The sentence level has the texts, so that examples are shown as they were written.
        own: dict[str, Any] = {"levels": "word,sentence", "layers": layer, "combine": "none"}
        store = extract(corpus, output / "features", **own, **options)
    else:
        raise click.UsageError("pass either --corpus or --store")
    feature = store.feature("word", f"layer_{layer:02d}").name
    rows, n_found = _occurrences(store, word, feature)
    vectors = store.take("word", feature, rows).astype(np.float64)
    vectors = _unit(vectors - vectors.mean(axis=0))
    with threadpool_limits(limits=1):  # small matrices are slower on several threads
        number, chosen = _choose(vectors, senses)
    plane = PCA(2, svd_solver="full").fit(vectors)
    frame = _table(store, rows, number, vectors, plane.transform(vectors))
    write(output / "senses.csv", frame)
    result = {
        "word": word,
        "model": store.metadata["model"],
        "feature": feature,
        "n_occurrences": n_found,
        "n_clustered": len(rows),
        **chosen,
        "senses": _describe(frame, _typical_words(store, rows, number, word)),
    }
    _plot(output / "plot", result, frame, plane.explained_variance_ratio_)
    text = _text(result)
    write(output / "examples.txt", text + "\n")
    return Result(result, text)


def _occurrences(store: Store, word: str, feature: str) -> tuple[Rows, int]:
    """Return rows of a word that have a vector, at most a random sample, and how many there are."""
    surfaces = store.polars("word", ["word"])["word"]
    same = [surface for surface in surfaces.unique() if surface.casefold() == word.strip().casefold()]
    rows = np.flatnonzero(surfaces.is_in(same).to_numpy() & store.valid("word", feature)).astype(np.int64)
    if len(rows) < 2:
        raise UserError(f"{store.path}: {len(rows)} occurrences of {word!r}; choose a more frequent word")
    n_chosen = min(N_OCCURRENCES, len(rows))
    chosen = np.random.default_rng(0).choice(len(rows), n_chosen, replace=False, shuffle=False)
    return rows[np.sort(chosen)], len(rows)


def _unit(vectors: Vectors) -> Any:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def _choose(vectors: Vectors, senses: int | None) -> tuple[Rows, dict[str, Any]]:
    """Cluster (n, dim) vectors into the given number of senses, or the one with the highest silhouette."""
    from sklearn.metrics import silhouette_score

    n_different = len(np.unique(vectors, axis=0))
    if n_different < max(3 if senses is None else 2, senses or 1):
        raise UserError(f"{n_different} different occurrences are too few; pass --senses up to that, or more text")
    if senses is not None:
        return _cluster(vectors, senses), {"chosen_by": "--senses", "n_clusters": senses}
    counts = range(2, max(2, min(MAX_SENSES, n_different // MEAN_SIZE)) + 1)
    numbers = {n: _cluster(vectors, n) for n in counts}
    silhouettes = {n: float(silhouette_score(vectors, numbers[n])) for n in counts}
    best = max(counts, key=lambda n: silhouettes[n])
    bar = max(LEAST_SILHOUETTE, _highest_of_clouds(vectors, numbers[best], counts))
    return numbers[best], {
        "chosen_by": "silhouette",
        "n_clusters": best,
        "one_sense_plausible": silhouettes[best] <= bar,
        "silhouette": silhouettes[best],
        "bar": bar,
        "silhouettes": silhouettes,
    }


def _cluster(vectors: Vectors, n_clusters: int, n_tries: int = 10) -> Rows:
    """Return the number of each vector's cluster, from 1, the largest first."""
    from sklearn.cluster import KMeans

    labels = KMeans(n_clusters, n_init=n_tries, random_state=0).fit_predict(vectors)
    _, labels, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    ranks: Rows = (-sizes).argsort(kind="stable").argsort()
    return ranks[labels] + 1


def _highest_of_clouds(vectors: Vectors, numbers: Rows, counts: range) -> float:
    """Return the highest silhouette of random points from one normal cloud with the spread of the clusters."""
    from sklearn.metrics import silhouette_score

    random = np.random.default_rng(0)
    means = np.stack([vectors[numbers == n].mean(axis=0) for n in range(1, numbers.max() + 1)])
    _, deviations, axes = np.linalg.svd(vectors - means[numbers - 1], full_matrices=False)
    highest = -1.0
    for _ in range(N_CLOUDS):
        cloud = random.standard_normal((len(vectors), len(axes))) @ (deviations[:, None] * axes)
        cloud = _unit(cloud - cloud.mean(axis=0))
        for n in counts:
            highest = max(highest, float(silhouette_score(cloud, _cluster(cloud, n, n_tries=1))))
    return highest


def _table(store: Store, rows: Rows, number: Rows, vectors: Vectors, places: Vectors) -> pl.DataFrame:
    """Return a row for each occurrence, by sense, the closest to the centre of its sense first."""
    centres = _unit(np.stack([vectors[number == n].mean(axis=0) for n in range(1, number.max() + 1)]))
    contexts = words_in_context(store, rows, WIDTH)
    frame = store.rows("word", rows, ["doc_id", "word_index", "char_start", "char_end", "word"])
    return frame.with_columns(
        pl.Series("left", [context.left for context in contexts]),
        pl.Series("right", [context.right for context in contexts]),
        pl.Series("sense", number),
        pl.Series("closeness", (vectors * centres[number - 1]).sum(axis=1)),
        pl.Series("x", places[:, 0]),
        pl.Series("y", places[:, 1]),
    ).sort("sense", "closeness", descending=[False, True], maintain_order=True)


def _typical_words(store: Store, rows: Rows, number: Rows, word: str) -> list[list[str]]:
    """Return the context words of each sense with the highest z-score of log odds (Monroe, Colaresi & Quinn 2008)."""
    folded = pl.col("word").map_elements(str.casefold, pl.String)
    words = store.polars("word", ["doc_id", "word"]).with_columns(folded, row=pl.int_range(pl.len()))
    corpus = words.group_by("word").agg(in_corpus=pl.len())
    # Each word near an occurrence, in the same document, once. The most frequent ones are function words.
    counts = (
        words[rows]
        .select("doc_id", at="row", sense=pl.Series(number))
        .join(pl.DataFrame({"step": range(-REACH, REACH + 1)}), how="cross")
        .with_columns(row=pl.col("at") + pl.col("step"))
        .join(words, on=["doc_id", "row"])
        .unique(["at", "word"])
        .join(corpus.filter(pl.col("in_corpus") <= max(1000, len(words) / 1000)), on="word")
        .filter(pl.col("word").str.contains(r"\p{L}") & (pl.col("word") != word.strip().casefold()))
        .group_by("sense", "word")
        .agg(pl.col("in_corpus").first(), n=pl.len())
    )
    total = counts["n"].sum()
    # The prior has the weight of all contexts together.
    prior = pl.col("in_corpus") * (total / len(words))
    here, size = pl.col("n") + prior, pl.col("n").sum().over("sense") + total
    there, others = pl.col("n").sum().over("word") - pl.col("n") + prior, 3 * total - size
    odds = (here / (size - here)).log() - (there / (others - there)).log()
    typical = (
        counts.with_columns(score=odds / (1 / here + 1 / there).sqrt())
        .filter(pl.col("n") > 1, pl.col("score") > 0)
        .sort("score", "word", descending=[True, False])
    )
    return [typical.filter(pl.col("sense") == n)["word"].head(N_WORDS).to_list() for n in range(1, number.max() + 1)]


def _describe(frame: pl.DataFrame, typical: list[list[str]]) -> list[dict[str, Any]]:
    """Return each sense with its size, its typical words, and different examples."""
    names = ["left", "word", "right", "closeness", "doc_id", "word_index"]
    senses = []
    for n, (members, words) in enumerate(zip(frame.partition_by("sense"), typical, strict=True), 1):
        examples = members.unique(names[:3], keep="first", maintain_order=True)[names].head(N_EXAMPLES).to_dicts()
        senses.append({"sense": n, "n_occurrences": len(members), "typical_words": words, "examples": examples})
    return senses


def _plot(stem: Path, result: dict[str, Any], frame: pl.DataFrame, shares: Vectors) -> None:
    """Draw the occurrences in the plane of their principal axes, and label the clearest of each sense."""
    names = [", ".join([f"sense {sense['sense']}", *sense["typical_words"][:3]]) for sense in result["senses"]]
    named = {(found["doc_id"], found["word_index"]) for sense in result["senses"] for found in sense["examples"][:3]}
    labels = []
    for row in frame.iter_rows(named=True):
        near = [*row["left"].split()[-2:], row["word"], *row["right"].split()[:2]]
        labels.append(" ".join(near) if (row["doc_id"], row["word_index"]) in named else "")
    axes = [f"principal axis {n}: {share:.0%} of the variance" for n, share in enumerate(shares, 1)]
    groups = [names[n - 1] for n in frame["sense"]]
    title = f"{result['word']}, {result['model']} {result['feature']}"
    plot_points(frame.select("x", "y"), groups, labels, stem, title=title, axis_names=(axes[0], axes[1]))


def _text(result: dict[str, Any]) -> str:
    """Return the senses as text, examples in columns."""
    verdict = f"{result['n_clusters']} clusters"
    if result["chosen_by"] == "--senses":
        verdict += ", by --senses"
    else:
        if result["one_sense_plausible"]:
            verdict = "perhaps one sense only: the best split, which follows, is not clear enough"
        verdict += f" (silhouette {result['silhouette']:.3f}; senses need more than {result['bar']:.3f})"
    lines = [f"{result['word']}: {result['n_clustered']} of {result['n_occurrences']} occurrences, {verdict}"]
    for sense in result["senses"]:
        words = ", ".join(sense["typical_words"])
        lines += ["", f"sense {sense['sense']}: {sense['n_occurrences']} occurrences; {words or 'no typical words'}"]
        lines += [Context(found["left"], found["word"], found["right"]).aligned(WIDTH) for found in sense["examples"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
