"""Duplicates and outliers among documents: equal texts, equal but for case and spaces, and nearly equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer

from bertfeat.audits.side import Side, join_vectors, nearest_of
from bertfeat.records import BoolArray, Float64Array, IntArray
from bertfeat.vectors.array import chunks_of

_N_NEIGHBORS = 10
_N_RANDOM = 20_000
# Nearly equal texts share this part of their trigrams of characters, or more where random pairs reach it by chance.
_LEAST_SHARED = 0.8
_CHANCE = 0.9999
_KINDS = ("exact", "folded", "near")
# Sequences of this many characters tell languages apart better than words, which few documents may share anyway.
_SEQUENCE, _LEAST_ODD, _LEAST_LETTERS = 4, 0.4, 15


class Neighbors(NamedTuple):
    """Of each document with a vector: its number among those of all sides, its nearest ones and their cosines."""

    documents: IntArray  # (n,)
    near: IntArray  # (n, k), numbers of documents
    cosines: Float64Array  # (n, k)


@dataclass(frozen=True, slots=True, eq=False)
class Duplicates:
    """The documents of groups of duplicates.

    Nearly equal texts share `threshold` of their trigrams of characters; of random pairs of texts that are not
    neighbors, `false_alarms` do.
    """

    table: pl.DataFrame
    threshold: float
    false_alarms: float


def find_neighbors(sides: list[Side], seed: int) -> Neighbors:
    """Find the nearest documents of all documents of all sides."""
    numbers, source = join_vectors(sides)
    k = min(_N_NEIGHBORS, len(numbers) - 1)
    near, cosines = np.empty((len(numbers), k), np.int64), np.empty((len(numbers), k))
    if k:
        nearest = nearest_of(source, seed)
        for span, vectors in chunks_of(source):
            own = np.arange(span.start, span.stop)
            found, positions = nearest.of(vectors, k, own)
            # An index of lists may find fewer: those that are missing count next to nothing.
            cosines[own], near[own] = np.nan_to_num(found), numbers[np.maximum(0, positions)]
    return Neighbors(numbers, near, cosines)


def find_duplicates(documents: pl.DataFrame, neighbors: Neighbors, seed: int) -> Duplicates:
    """Find groups of duplicates among documents, which have `side`, `doc_id`, `text` and `label`."""
    folded = _folded(documents)
    has_text = (folded != "").to_numpy()
    exact = documents["text"].rank("dense").to_numpy().astype(np.int64) - 1
    equal = folded.rank("dense").to_numpy().astype(np.int64) - 1
    grams = _sequences(folded, 3)
    pairs = np.stack([np.repeat(neighbors.documents, neighbors.near.shape[1]), neighbors.near.ravel()], axis=1)
    pairs = np.unique(np.sort(pairs, axis=1), axis=0)
    random = np.sort(np.random.default_rng(seed).integers(0, len(equal), (_N_RANDOM, 2)), axis=1)
    # In a small corpus with many duplicates, random pairs are duplicates too often.
    is_far = ~np.isin(random @ [len(equal), 1], pairs @ [len(equal), 1])
    by_chance = _shared(grams, random[is_far & (equal[random[:, 0]] != equal[random[:, 1]])])
    threshold = max(_LEAST_SHARED, float(np.quantile(by_chance, _CHANCE)) if len(by_chance) else 0.0)
    pairs = pairs[(equal[pairs[:, 0]] != equal[pairs[:, 1]]) & has_text[pairs].all(axis=1)]
    shared = _shared(grams, pairs)
    pairs, shared = pairs[shared >= threshold], shared[shared >= threshold]
    best = np.where(np.bincount(equal)[equal] > 1, 1.0, 0.0)
    np.maximum.at(best, pairs.ravel(), np.repeat(shared, 2))
    first_of = np.unique(equal, return_index=True)[1][equal]
    links = np.concatenate([pairs, np.stack([np.arange(len(equal)), first_of], axis=1)])
    graph = sparse.coo_matrix((np.ones(len(links)), links.T), shape=(len(equal), len(equal)))
    groups = sparse.csgraph.connected_components(graph, directed=False)[1].astype(np.int64)
    # The codes of each kind of equality, the strictest first.
    table = _table(documents.with_columns(shared=pl.Series(best)).filter(has_text), (exact, equal, groups), has_text)
    return Duplicates(table, threshold, float((by_chance >= threshold).mean()) if len(by_chance) else 0.0)


def _folded(documents: pl.DataFrame) -> pl.Series:
    """Return the texts without differences of case and whitespace."""
    return documents["text"].str.to_lowercase().str.replace_all(r"\s+", " ").str.strip_chars()


def _sequences(texts: pl.Series, length: int) -> Any:
    """Return how often each text has each sequence of characters, a sparse matrix (n, 2 ** 20)."""
    settings: dict[str, Any] = {"ngram_range": (length, length), "n_features": 1 << 20, "lowercase": False}
    vectorizer = HashingVectorizer(analyzer="char", norm=None, alternate_sign=False, **settings)
    return vectorizer.transform((" " + texts + " ").to_list())


def _shared(grams: Any, pairs: npt.NDArray[np.int64]) -> Float64Array:
    """Return the share of trigrams that pairs (n, 2) of texts have in common, Dice's coefficient, (n,)."""
    totals = np.asarray(grams.sum(axis=1)).ravel()
    found = np.empty(len(pairs))
    for start in range(0, len(pairs), 4096):
        one, other = pairs[start : start + 4096].T
        common = np.asarray(grams[one].minimum(grams[other]).sum(axis=1)).ravel()
        found[start : start + 4096] = 2 * common / np.maximum(1, totals[one] + totals[other])
    return found


def _table(documents: pl.DataFrame, codes: Sequence[IntArray], has_text: BoolArray) -> pl.DataFrame:
    """Return the documents of groups of two or more: groups with test and train first, then the largest."""
    names = dict(zip(_KINDS, codes, strict=True))
    frame = documents.with_columns(pl.Series(name, code[has_text]) for name, code in names.items())
    is_train = (pl.col("side") == "train").any()
    frame = frame.with_columns(
        # The strictest way in which another document equals this one; and, for test, one of train.
        kind=pl.coalesce([pl.when(pl.len().over(name) > 1).then(pl.lit(name)) for name in names]),
        in_train=pl.when(pl.col("side") == "test").then(
            pl.coalesce([pl.when(is_train.over(name)).then(pl.lit(name)) for name in names])
        ),
        labels_differ=(pl.col("label").drop_nulls().n_unique() > 1).over("near"),
        size=pl.len().over("near"),
        crosses=(pl.col("side").n_unique() > 1).over("near"),
    )
    frame = frame.filter(pl.col("size") > 1).with_row_index("row")
    frame = frame.sort("crosses", "labels_differ", "size", "near", "row", descending=[True, True, True, False, False])
    group = (pl.col("near").rle_id() + 1).alias("group")
    return frame.select(group, "side", "doc_id", "kind", "shared", "in_train", "label", "labels_differ", "text")


def find_outliers(documents: pl.DataFrame, neighbors: Neighbors) -> pl.DataFrame:
    """Return documents unlike all others, and those that were not read whole, with the `reason` of each.

    Two numbers are far above the others', above the third quartile by three times the distance of the quartiles
    (Tukey's far outliers): the logarithm of the distance to the farthest of the nearest neighbors; and, of an odd
    language, the share of sequences of four characters that are in hardly any document.
    """
    distances = np.full(documents.height, np.nan)
    if neighbors.cosines.shape[1]:
        distances[neighbors.documents] = np.sqrt(np.maximum(1e-12, 2 - 2 * neighbors.cosines[:, -1]))
    logs = np.log(distances[neighbors.documents])
    median = float(np.exp(np.median(logs))) if len(logs) else 1.0
    far = np.log(distances, where=~np.isnan(distances), out=np.full(len(distances), -np.inf)) > _fence(logs)
    grams = _sequences(_folded(documents), _SEQUENCE)
    is_rare = np.bincount(grams.indices, minlength=grams.shape[1]) <= max(2, documents.height // 500)
    rare = grams @ is_rare / np.maximum(1, np.asarray(grams.sum(axis=1)).ravel())
    is_long = (documents["text"].str.count_matches(r"\p{L}") >= _LEAST_LETTERS).to_numpy()
    odd = is_long & (rare > max(_LEAST_ODD, _fence(rare[is_long])))
    is_cut = pl.col("truncated") if "truncated" in documents.columns else pl.lit(False)
    cases: dict[str, Any] = {"empty": pl.col("n_tokens") == 0, "cut": is_cut, "odd language": pl.Series(odd)}
    cases["unlike all others"] = pl.Series(far)
    reason = pl.coalesce([pl.when(is_one).then(pl.lit(name)) for name, is_one in cases.items()])
    times = pl.Series("times_median", distances / median).fill_nan(None)
    frame = documents.with_columns(times, reason=reason)
    frame = frame.filter(pl.col("reason").is_not_null()).sort("times_median", descending=True, nulls_last=True)
    return frame.select("side", "doc_id", "reason", "times_median", "label", "text")


def _fence(values: Float64Array) -> float:
    """Return the number above which values are far outliers."""
    low, high = np.quantile(values, [0.25, 0.75]) if len(values) else (0.0, 0.0)
    return float(high + 3 * (high - low))
