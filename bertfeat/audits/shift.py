"""Distance of test from train: a probe that separates their texts, and what gives a side away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.stats import binomtest
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from bertfeat.audits.side import Side, join_vectors
from bertfeat.choices import Level
from bertfeat.heads import LogisticRegressionProbe
from bertfeat.vectors.array import chunks_of

_N_FOLDS, _MOST_EACH, _PENALTY, _TOLERANCE = 5, 5000, 0.01, 1e-3
_N_SHOWN = 20
_UNKNOWN = ("[UNK]", "<unk>")


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """How well a probe separates documents of test from those of train.

    `accuracy` is that of a probe on `n_documents`, as many of each side, on documents that it has not seen: 0.5 is
    chance; `low` and `high` are its 95 % interval (Wilson). Documents of test that are in train are left out.
    `documents` are those that it is most sure of, `words` those that are more frequent in one side than chance allows,
    with z-scores. `unknown` is the share of unknown pieces of the tokenizer in each side, where token rows are stored.
    """

    accuracy: float
    low: float
    high: float
    n_documents: int
    documents: pl.DataFrame
    words: pl.DataFrame
    unknown: dict[str, float]


def find_shift(sides: list[Side], documents: pl.DataFrame, duplicates: pl.DataFrame, seed: int) -> Shift | None:
    """Measure how far two sides are apart, without documents of test that are in train; None if few are left."""
    numbers, source = join_vectors(sides)
    of_test = (documents["side"] == "test").to_numpy()[numbers]
    # A probe that has seen the one copy is wrong on the other.
    copies = duplicates.filter(pl.col("in_train").is_not_null())["doc_id"]
    is_copy = documents["doc_id"].is_in(copies.implode()).to_numpy()[numbers]
    each = np.flatnonzero(~of_test), np.flatnonzero(of_test & ~is_copy)
    n_each = min(*map(len, each), _MOST_EACH)
    if n_each < 2 * _N_FOLDS:
        return None
    rng, chosen = np.random.default_rng(seed), np.zeros(len(numbers), np.bool_)
    for rows in each:
        chosen[rng.choice(rows, n_each, replace=False)] = True
    vectors = np.concatenate([block[chosen[span.start : span.stop]] for span, block in chunks_of(source)])
    is_test, probe = of_test[chosen], LogisticRegressionProbe(C=_PENALTY, tol=_TOLERANCE)
    folds = StratifiedKFold(_N_FOLDS, shuffle=True, random_state=seed)
    chances = cross_val_predict(probe, vectors, is_test, cv=folds, method="predict_proba")[:, 1]
    n_right = int(((chances > 0.5) == is_test).sum())
    interval = binomtest(n_right, len(is_test)).proportion_ci(0.95, method="wilson")
    sure = np.where(is_test, chances, 1 - chances)
    shown = np.argsort(-sure, kind="stable")[: 5 * _N_SHOWN]
    frame = documents[numbers[chosen][shown]].select("side", "doc_id", pl.Series("probability", sure[shown]), "text")
    unknown = {side.name: share for side in sides if (share := _unknown(side)) is not None}
    found = n_right / len(is_test), float(interval.low), float(interval.high)
    return Shift(*found, len(is_test), frame, typical_words(documents), unknown)


def typical_words(documents: pl.DataFrame) -> pl.DataFrame:
    """Return words that are more frequent in one side than in the other, with the z-score of their log odds.

    Weighted log odds with an informative Dirichlet prior, the counts of both sides (Monroe et al. 2008); a word counts
    once per document.
    """
    words = documents.select("side", word=pl.col("text").str.to_lowercase().str.extract_all(r"\w+").list.unique())
    is_test, both = pl.col("side") == "test", pl.col("n_train") + pl.col("n_test")
    counts = words.explode("word").drop_nulls().group_by("word").agg(n_train=(~is_test).sum(), n_test=is_test.sum())
    train, test = both + pl.col("n_train"), both + pl.col("n_test")
    odds = [(own / (own.sum() - own)).log() for own in (train, test)]
    z = (odds[1] - odds[0]) / (1 / train + 1 / test).sqrt()
    frame = counts.with_columns(z=z, side=pl.when(z > 0).then(pl.lit("test")).otherwise(pl.lit("train")))
    frame = frame.filter((both > 1) & (pl.col("z").abs() > 3)).sort(-pl.col("z").abs(), "word")
    return frame.group_by("side", maintain_order=True).head(_N_SHOWN).select("side", "word", "z", "n_train", "n_test")


def _unknown(side: Side) -> float | None:
    if Level.TOKEN not in side.store.levels:
        return None
    tokens = side.store.polars(Level.TOKEN, ["token", "is_special"])
    texts = tokens.filter(~pl.col("is_special") | pl.col("token").is_in(_UNKNOWN))
    return float(texts["token"].is_in(_UNKNOWN).mean() or 0.0)  # type: ignore[arg-type]
