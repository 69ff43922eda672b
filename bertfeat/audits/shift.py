"""Distance of test from train: a probe that separates their texts, and what gives a side away."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.stats import binomtest

from bertfeat.audits.side import Joined, Side
from bertfeat.choices import Level
from bertfeat.heads import LogisticRegressionProbe
from bertfeat.records import Float32Array, IntArray
from bertfeat.vectors.array import Vectors, chunks_of

_N_FOLDS, _MOST_EACH, _PENALTY = 5, 5000, 0.01
_N_SHOWN = 20
_UNKNOWN = ("[UNK]", "<unk>")


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """How well a probe separates documents of test from those of train.

    `accuracy` is that of a probe on `n_documents`, as many of each side, on documents that it has not seen: 0.5 is
    chance; `low` and `high` are its 95 % interval (Wilson). `documents` are those that it is most sure of,
    `words` those that are more frequent in one side than chance allows, with z-scores. `unknown` is the share of
    unknown pieces of the tokenizer in each side, where token rows are stored.
    """

    accuracy: float
    low: float
    high: float
    n_documents: int
    documents: pl.DataFrame
    words: pl.DataFrame
    unknown: dict[str, float]


def find_shift(sides: list[Side], documents: pl.DataFrame, seed: int) -> Shift | None:
    """Measure how far two sides are apart; None if there are too few documents."""
    counts = [len(side.vectors[0]) for side in sides]
    n_each = min(*counts, _MOST_EACH)
    if n_each < 2 * _N_FOLDS:
        return None
    rng = np.random.default_rng(seed)
    chosen = [np.sort(rng.choice(count, n_each, replace=False)) for count in counts]
    places = np.concatenate([chosen[0], counts[0] + chosen[1]])
    vectors = _rows_of(Joined([side.vectors[1] for side in sides]), places)
    numbers = np.concatenate([side.vectors[0][own] for side, own in zip(sides, chosen, strict=True)])
    numbers[n_each:] += sides[0].documents.height
    is_test = np.repeat([False, True], n_each)
    # As many of each side in each fold.
    folds = np.concatenate([rng.permutation(n_each) % _N_FOLDS for _ in sides])
    chances = np.empty(len(is_test), np.float32)
    for fold in range(_N_FOLDS):
        held = folds == fold
        probe = LogisticRegressionProbe(C=_PENALTY).fit(vectors[~held], is_test[~held])
        chances[held] = probe.predict_proba(vectors[held])[:, 1]
    n_right = int(((chances > 0.5) == is_test).sum())
    interval = binomtest(n_right, len(is_test)).proportion_ci(0.95, method="wilson")
    sure = np.where(is_test, chances, 1 - chances)
    shown = np.argsort(-sure, kind="stable")[: 5 * _N_SHOWN]
    frame = documents[numbers[shown]].select("side", "doc_id", pl.Series("probability", sure[shown]), "text")
    unknown = {side.name: share for side in sides if (share := _unknown(side)) is not None}
    found = n_right / len(is_test), float(interval.low), float(interval.high)
    return Shift(*found, len(is_test), frame, typical_words(documents), unknown)


def typical_words(documents: pl.DataFrame) -> pl.DataFrame:
    """Return words that are more frequent in one side than in the other, with the z-score of their log odds.

    Weighted log odds with an informative Dirichlet prior, the counts of both sides (Monroe et al. 2008); a word counts
    once per document.
    """
    counts = {}
    for name in ("train", "test"):
        texts = documents.filter(pl.col("side") == name)["text"]
        counts[name] = Counter(word for text in texts for word in set(re.findall(r"\w+", text.lower())))
    both = counts["train"] + counts["test"]
    words = [word for word, count in both.items() if count > 1]
    prior = np.array([both[word] for word in words], np.float64)
    odds, variance = np.zeros(len(words)), np.zeros(len(words))
    for name, sign in (("test", 1), ("train", -1)):
        own = np.array([counts[name][word] for word in words]) + prior
        total = sum(counts[name].values()) + sum(both.values())
        odds += sign * np.log(own / (total - own))
        variance += 1 / own
    frame = pl.DataFrame({"word": words, "z": odds / np.sqrt(variance)}).with_columns(
        side=pl.when(pl.col("z") > 0).then(pl.lit("test")).otherwise(pl.lit("train")),
        n_train=pl.Series([counts["train"][word] for word in words], dtype=pl.Int64),
        n_test=pl.Series([counts["test"][word] for word in words], dtype=pl.Int64),
    )
    frame = frame.filter(pl.col("z").abs() > 3).sort(pl.col("z").abs(), descending=True, maintain_order=True)
    return frame.group_by("side", maintain_order=True).head(_N_SHOWN)


def _rows_of(source: Vectors, places: IntArray) -> Float32Array:
    """Return some vectors by their ascending places, float32 (n, dim)."""
    found = np.empty((len(places), source.shape[1]), np.float32)
    for span, vectors in chunks_of(source):
        first, last = np.searchsorted(places, [span.start, span.stop])
        found[first:last] = vectors[places[first:last] - span.start]
    return found


def _unknown(side: Side) -> float | None:
    if Level.TOKEN not in side.store.levels:
        return None
    tokens = side.store.polars(Level.TOKEN, ["token", "is_special"])
    texts = tokens.filter(~pl.col("is_special") | pl.col("token").is_in(_UNKNOWN))
    return float(texts["token"].is_in(_UNKNOWN).mean() or 0.0)  # type: ignore[arg-type]
