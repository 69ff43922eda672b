"""Dependency trees of the sentences in a store of words: their distances, scores of predicted ones, and drawings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from bertfeat import Store, open_store
from bertfeat.display import display_width, printable
from bertfeat.errors import UserError, no_column
from bertfeat.plots.charts import COLORS
from bertfeat.records import BoolArray, Float32Array, Float64Array
from bertfeat.store.provenance import FeatureSpec

Values: TypeAlias = npt.NDArray[Any]
#: Two words, by their places in the sentence, the lower one first.
Edge: TypeAlias = tuple[int, int]
# Tags of Universal Dependencies, and of the Penn Treebank.
PUNCTUATION = frozenset(("PUNCT", "''", "``", ",", ".", ":", "-LRB-", "-RRB-"))
# The lengths of sentences over which correlations are averaged.
LENGTHS = range(5, 51)


class Tree(NamedTuple):
    """A sentence of n words: its rows in the store, the number of edges between two words (n, n), and the root.

    `is_scored` (n,) says which words are not punctuation, and `edges` are those between such words.
    """

    doc_id: object
    words: list[str]
    rows: slice
    distances: Float32Array
    root: int
    is_scored: BoolArray
    edges: set[Edge]


def open_stores(paths: Mapping[str, str], features: Sequence[str]) -> tuple[dict[str, Store], list[str]]:
    """Open stores of words, and name the features to read, by default all; a UserError says how they differ."""
    stores = {name: open_store(path) for name, path in paths.items()}
    first, *others = stores.values()
    names = [*dict.fromkeys(features)] or [feature.name for feature in first.features("word")]
    for spec in [FeatureSpec.of(first, "word", name) for name in names]:
        for other in others:
            spec.find_in(other, mine=f"store {first.path.name}")
    return stores, names


def read_trees(store: Store, head: str = "head", pos: str = "upos") -> list[Tree]:
    """Return the sentences of a store in order; a UserError names a missing column, or what is not a tree."""
    columns = [column.name for column in store.schema("word").columns]
    for name, flag in ((head, "--head"), (pos, "--pos")):
        if name not in columns:
            raise UserError(f"{store.path}: {no_column(name, columns)}; extract a .conllu, or pass {flag}")
    frame = store.polars("word", [*dict.fromkeys(("doc_id", "word", head, pos))]).with_row_index("row_number")
    sentences = frame.group_by(pl.col("doc_id").rle_id().alias("run"), maintain_order=True).agg(pl.all())
    trees = []
    for row in sentences.iter_rows(named=True):
        doc_id = row["doc_id"][0]
        try:
            heads, distances = _measure(row[head])
        except ValueError as error:
            raise UserError(f"{store.path}: document {doc_id!r}: {error}") from None
        is_scored = np.array([tag not in PUNCTUATION for tag in row[pos]])
        pairs = [(min(pair), max(pair)) for pair in enumerate(heads) if pair[1] >= 0 and is_scored[[*pair]].all()]
        rows = slice(row["row_number"][0], row["row_number"][-1] + 1)
        trees.append(Tree(doc_id, row["word"], rows, distances, heads.index(-1), is_scored, {*pairs}))
    return trees


def _measure(given: Sequence[Any]) -> tuple[list[int], Float32Array]:
    """Return the places of heads, the root's is -1, and the distances (n, n); a ValueError says what is not a tree."""
    from scipy.sparse.csgraph import shortest_path

    n_words = len(given)
    for number, head in enumerate(given, 1):
        if not str(head).isdecimal() or int(head) > n_words:
            raise ValueError(f"the head of word {number} is {head!r}; heads are numbers, 0 (the root) to {n_words}")
    heads = np.array([int(head) - 1 for head in given])
    children = np.flatnonzero(heads >= 0)
    if len(children) != n_words - 1:
        raise ValueError(f"{n_words - len(children)} words have the head 0; a tree has one root")
    edges = np.zeros((n_words, n_words))
    edges[children, heads[children]] = 1
    distances: Float32Array = shortest_path(edges, method="D", directed=False, unweighted=True).astype(np.float32)
    if lost := np.flatnonzero(np.isinf(distances[heads.argmin()])).tolist():
        raise ValueError(f"the heads of words form a cycle: from word {lost[0] + 1} no way leads to the root")
    return heads.tolist(), distances


def spanning_edges(distances: Values, is_scored: BoolArray) -> set[Edge]:
    """Return the edges of the minimum spanning tree of the scored words, from distances (n, n) of all words."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    words = np.flatnonzero(is_scored)
    if len(words) < 2:
        return set()
    # Without the added constant, which changes no tree, a distance of 0 would be a missing edge.
    found = minimum_spanning_tree(distances[np.ix_(words, words)].astype(np.float64) + 1).tocoo()
    pairs = zip(words[found.row].tolist(), words[found.col].tolist(), strict=True)
    return {(min(pair), max(pair)) for pair in pairs}


def score_trees(trees: Sequence[Tree], distances: Sequence[Values], depths: Sequence[Values]) -> dict[str, Any]:
    """Score predicted distances (n, n) and depths (n,) of trees; None where no sentence is long enough."""
    n_found, n_edges, roots = 0, sum(len(tree.edges) for tree in trees), []
    correlations: tuple[dict[int, list[float]], dict[int, list[float]]] = (defaultdict(list), defaultdict(list))
    for tree, far, deep in zip(trees, distances, depths, strict=True):
        n_found += len(tree.edges & spanning_edges(far, tree.is_scored))
        if tree.is_scored[tree.root]:
            roots.append(np.where(tree.is_scored, deep, np.inf).argmin() == tree.root)
        if (length := len(tree.words)) in LENGTHS:
            correlations[0][length].extend(_correlate(far, tree.distances))
            correlations[1][length].extend(_correlate(deep[None], tree.distances[[tree.root]]))
    dspr, nspr = [_mean([np.mean(values) for values in found.values()]) for found in correlations]
    return {"uuas": n_found / n_edges if n_edges else None, "dspr": dspr, "nspr": nspr, "root_accuracy": _mean(roots)}


def _mean(values: Sequence[Any]) -> float | None:
    return float(np.mean(values)) if values else None


def _correlate(one: Values, other: Values) -> Float64Array:
    """Return Spearman's correlation of each row of two matrices (m, n): (m,), 0 for a row of equal values."""
    from scipy.stats import rankdata

    x, y = [ranks - ranks.mean(axis=1, keepdims=True) for ranks in (rankdata(one, axis=1), rankdata(other, axis=1))]
    norms = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    found: Float64Array = (x * y).sum(axis=1) / np.where(norms > 0, norms, 1)
    return found


def draw_tree(tree: Tree, distances: Values, feature: str) -> str:
    """Return an SVG: the tree's edges above its words, and predicted ones below, dashed where they are wrong."""
    found, words = spanning_edges(distances, tree.is_scored), [printable(word) for word in tree.words]
    caption = printable(f"{tree.doc_id}, {feature}: {len(found & tree.edges)} of {len(tree.edges)} edges")
    widths = np.array([9.0 * display_width(word) + 14 for word in words])
    centers = np.cumsum(widths) - widths / 2
    above, below = (max((8 + 8 * (j - i) for i, j in edges), default=0) for edges in (tree.edges, found))
    top, bottom = above + 40, above + 60
    size = f'width="{max(widths.sum(), 9 * display_width(caption) + 14):.0f}" height="{bottom + below + 10}"'
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="14">']
    lines.append(f'<rect width="100%" height="100%" fill="white"/><text x="7" y="20">{escape(caption)}</text>')
    for center, word in zip(centers, words, strict=True):
        lines.append(f'<text x="{center:.1f}" y="{top + 15}" text-anchor="middle">{escape(word)}</text>')
    for edges, y, side in ((tree.edges, top, -1), (found, bottom, 1)):
        for i, j in sorted(edges):
            # A cubic curve reaches three quarters of the height of its control points.
            x, to, control = f"{centers[i]:.1f}", f"{centers[j]:.1f}", f"{y + side * (8 + 8 * (j - i)) * 4 / 3:.1f}"
            look = f'stroke="{COLORS[0]}"' if (i, j) in tree.edges else f'stroke="{COLORS[1]}" stroke-dasharray="4 3"'
            lines.append(f'<path d="M{x} {y} C{x} {control} {to} {control} {to} {y}" fill="none" {look}/>')
    return "\n".join([*lines, "</svg>", ""])
