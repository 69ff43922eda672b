"""Structural probe: the dependency trees that lie in the distances and lengths of word vectors, layer by layer.

    bertfeat extract en_ewt-ud-train.conllu -o train --level word --word-pooling mean --layers all
    python -m bertfeat.pipelines.structural_probe --train train --dev dev --test test -o syntax --trees 5

Hewitt and Manning 2019 (A Structural Probe for Finding Syntax in Word Representations, NAACL): a matrix B is learned,
so that |B(h_i - h_j)|^2 is the number of edges between words i and j, and another, so that |B h_i|^2 is the depth of
word i, by the mean absolute error of each sentence. UUAS is the share of edges, without punctuation, that the minimum
spanning tree of the predicted distances has; DSpr. (for each word) and NSpr. are Spearman's correlations of distances
and depths, averaged by the lengths of sentences, 5 to 50. Training is that of the paper's code: Adam, a tenth of the
learning rate after an epoch that is not better on dev, and the end after five.

Figures of the paper are of the Penn Treebank with Stanford dependencies, not to be compared with those of other or
smaller treebanks. Here the edges to find are those of the tree, there those of a spanning tree of its distances
without punctuation; here a root that is punctuation does not count. A sentence is skipped if a word has no vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
import polars as pl
import torch
from torch.nn.utils.rnn import pad_sequence

from bertfeat.errors import RunError, UserError
from bertfeat.pipelines._recipe import Result, hold_out, recipe, write
from bertfeat.pipelines._trees import Tree, draw_tree, open_stores, read_trees, score_trees
from bertfeat.plots.tables import markdown_table

STORE, COUNT = click.Path(exists=True, file_okay=False), click.IntRange(min=1)
# The epochs without the least gain on dev that end a training.
PATIENCE, LEAST_GAIN = 5, 1e-4
SCORES = {"uuas": "UUAS", "dspr": "DSpr.", "nspr": "NSpr.", "root_accuracy": "root accuracy"}
#: Train, dev and test: trees with the vectors of their words, (n, dim).
Examples: TypeAlias = dict[str, list[tuple[Tree, torch.Tensor]]]


@recipe("sklearn", extraction="")
@click.option("--train", type=STORE, required=True, help="Store of words to learn from.")
@click.option("--dev", type=STORE, help="Store to choose the epoch on; without it, sentences are held out.")
@click.option("--test", type=STORE, help="Store to score on; without it, sentences are held out.")
@click.option("--feature", "features", multiple=True, help="A feature; repeat it for several.  [default: each one]")
@click.option("--head", default="head", show_default=True, help="Column with the numbers of the heads.")
@click.option("--pos", default="upos", show_default=True, help="Column that tells punctuation: PUNCT, or Penn's tags.")
@click.option("--rank", type=COUNT, help="Rows of B.  [default: the width of the vectors]")
@click.option("--epochs", type=COUNT, default=40, show_default=True, help="The most epochs.")
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), default=0.001, show_default=True)
@click.option("--batch-size", type=COUNT, default=20, show_default=True, help="Sentences of a step.")
@click.option("--seeds", type=COUNT, default=1, show_default=True, help="Trainings of each feature.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--trees", "n_trees", type=click.IntRange(min=0), default=0, show_default=True, help="Trees to draw.")
def main(
    features: Sequence[str], head: str, pos: str, n_trees: int, seeds: int, seed: int, output: Path, **options: Any
) -> Result:
    """Find the layers whose vectors hold dependency trees, and compare them with the order of the words."""
    paths = {name: options.pop(name) for name in ("train", "dev", "test")}
    stores, names = open_stores({name: path for name, path in paths.items() if path is not None}, features)
    trees, n_skipped = {}, 0
    for name, store in stores.items():
        known, found = np.all([store.valid("word", one) for one in names], axis=0), read_trees(store, head, pos)
        trees[name] = [tree for tree in found if known[tree.rows].all()]
        n_skipped += len(found) - len(trees[name])
        if not trees[name]:
            raise UserError(f"{store.path}: no sentence has a vector for each of its words")
    held = hold_out(len(trees["train"]), seed, {"dev", "test"} - stores.keys())
    trees |= {name: [trees["train"][row] for row in chosen] for name, chosen in held.items()}
    places = [np.arange(len(tree.words)) for tree in trees["test"]]
    order = score_trees(trees["test"], [np.abs(np.subtract.outer(one, one)) for one in places], places)
    rows: list[dict[str, Any]] = [{"feature": "order of the words", "seed": None, **order}]
    best: tuple[float, str, list[Any]] = (-1.0, "", [])
    for feature in names:
        vectors = {name: torch.from_numpy(store.numpy("word", feature, np.float32)) for name, store in stores.items()}
        vectors = {name: vectors.get(name, vectors["train"]) for name in trees}
        examples = {name: [(tree, vectors[name][tree.rows]) for tree in found] for name, found in trees.items()}
        for number in range(seed, seed + seeds):
            row, distances = _learn(examples, number, **options)
            rows.append({"feature": feature, "seed": number, **row})
            click.echo(f"{feature}, seed {number}: UUAS {_cell([row['uuas']])}", err=True)
            best = max(best, (row["uuas"] or 0.0, feature, distances), key=lambda found: found[0])
    drawn = [pair for pair in zip(trees["test"], best[2], strict=True) if 3 <= len(pair[0].edges) <= 25]
    for number, (tree, distances) in enumerate(drawn[:n_trees], 1):
        write(output / "trees" / f"{number:02}.svg", draw_tree(tree, distances, best[1]))
    write(output / "scores.csv", pl.DataFrame(rows, infer_schema_length=None))
    lines = []
    for feature in ("order of the words", *names):
        of_feature = [row for row in rows if row["feature"] == feature]
        lines.append([feature, *(_cell([row[score] for row in of_feature]) for score in SCORES)])
    table = markdown_table(["feature", *SCORES.values()], lines)
    write(output / "table.md", table + "\n")
    counts = {f"n_{name}": len(found) for name, found in trees.items()} | {"n_skipped": n_skipped}
    text = f"{table}\n\nsentences: " + ", ".join(f"{name[2:]} {count:,}" for name, count in counts.items())
    return Result({"model": stores["train"].metadata["model"], **counts, "rows": rows}, text)


def _learn(examples: Examples, seed: int, **training: Any) -> tuple[dict[str, Any], list[Any]]:
    """Learn both matrices; return the scores and reports, and the predicted distances."""
    found: dict[str, Any] = {}
    reports: dict[str, Any] = {}
    for kind in ("distances", "depths"):
        matrix, report = fit(kind, examples, seed, **training)
        reports |= {f"{name}_of_{kind}": value for name, value in report.items()}
        with torch.inference_mode():
            found[kind] = [predict(kind, matrix, [vectors])[0].numpy() for _, vectors in examples["test"]]
    return {**score_trees([tree for tree, _ in examples["test"]], **found), **reports}, found["distances"]


def fit(
    kind: str, examples: Examples, seed: int, rank: int | None, epochs: int, learning_rate: float, batch_size: int
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Learn `distances` or `depths`; return B (rank, dim), and the epochs and the loss on dev of the best one."""
    generator, dim = torch.Generator().manual_seed(seed), examples["train"][0][1].shape[1]
    matrix = torch.empty(rank or dim, dim).uniform_(-0.05, 0.05, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([matrix], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    train, dev, starts = examples["train"], examples["dev"], range(0, len(examples["dev"]), batch_size)
    best, best_epoch, best_matrix = math.inf, 0, matrix
    for epoch in range(1, epochs + 1):
        for rows in torch.split(torch.randperm(len(train), generator=generator), batch_size):
            optimizer.zero_grad()
            _losses(kind, matrix, [train[row] for row in rows.tolist()]).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.inference_mode():
            loss = torch.cat([_losses(kind, matrix, dev[start : start + batch_size]) for start in starts]).mean().item()
        if not math.isfinite(loss):
            raise RunError(f"epoch {epoch}: the loss on dev is {loss}; pass a --learning-rate below {learning_rate:g}")
        schedule.step(loss)
        if loss < best - LEAST_GAIN:
            best, best_epoch, best_matrix = loss, epoch, matrix.detach().clone()
        elif epoch - best_epoch >= PATIENCE:
            break
    return best_matrix, {"epochs": epoch, "best_epoch": best_epoch, "dev_loss": best}


def predict(kind: str, matrix: torch.Tensor, vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the padded distances (b, n, n) or depths (b, n) that a matrix (rank, dim) gives sentences of vectors."""
    projected = torch.cat([*vectors]) @ matrix.T
    points = pad_sequence([*torch.split(projected, [len(one) for one in vectors])], batch_first=True)
    if kind == "depths":
        return points.square().sum(-1)
    # The shift changes no distance, but makes the rounding errors of long vectors small.
    points = points - points[:, :1]
    squares = points.square().sum(-1, keepdim=True)
    return squares + squares.mT - 2 * points @ points.mT


def _losses(kind: str, matrix: torch.Tensor, examples: Sequence[tuple[Tree, torch.Tensor]]) -> torch.Tensor:
    """Return the mean absolute error of each sentence, (n_sentences,)."""
    predicted = predict(kind, matrix, [vectors for _, vectors in examples])
    gold = torch.full_like(predicted, -1)
    for row, (tree, _) in zip(gold, examples, strict=True):
        truth = torch.from_numpy(tree.distances if kind == "distances" else tree.distances[tree.root])
        row[tuple(map(slice, truth.shape))] = truth
    is_known = gold >= 0
    return ((predicted - gold).abs() * is_known).flatten(1).sum(1) / is_known.flatten(1).sum(1)


def _cell(values: Sequence[float | None]) -> str:
    """Return the mean, and the deviation over seeds if there are several."""
    known = [value for value in values if value is not None]
    spread = f" ± {np.std(known, ddof=1):.3f}" if len(known) > 1 else ""
    return f"{np.mean(known):.3f}{spread}" if known else "-"


if __name__ == "__main__":
    main()
