"""Probable label errors: probabilities of a probe that has not seen a row, joined with its neighbors' labels."""
# The geometric mean of both ranks flipped labels of banking77, UD-EWT and WNUT-17 better than either, and than
# cleanlab 2.9 does from the same probabilities: docs/audit.md.

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from bertfeat.audits.side import Nearest, Side
from bertfeat.errors import UserError
from bertfeat.heads import LogisticRegressionProbe
from bertfeat.heads.base import Labels, codes_of
from bertfeat.memory import free_memory
from bertfeat.probes.rows import read_vectors
from bertfeat.progress import Progress
from bertfeat.records import BoolArray, Float32Array, Float64Array, IntArray
from bertfeat.vectors.array import FloatArray, Vectors, chunks_of

N_FOLDS, N_NEIGHBORS = 5, 10
# What a class gets that the probe, or no neighbor, has a chance for: neither alone can rule a label out.
_LEAST_CHANCE, _LEAST_VOTE = 1e-3, 2e-2
_PENALTIES = [0.001, 0.01, 0.1]
_N_SHOWN, _MOST_PAIRS = 3, 100


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What was found of labelled rows; each array is (n_rows,).

    `own` is the probability of a row's label, NaN where its class is not among those that the probe has learned; `best`
    is the most probable class, as an index, and `chance` its probability.
    """

    codes: IntArray
    own: Float64Array
    best: IntArray
    chance: Float64Array

    @classmethod
    def empty(cls, codes: IntArray) -> Judged:
        """Return what holds nothing yet, for labels as indices (n_rows,); -1 is a class of test alone."""
        return cls(codes, np.full(len(codes), np.nan), np.zeros(len(codes), np.int64), np.zeros(len(codes)))

    def take(self, rows: IntArray, chances: Float64Array, learned: IntArray) -> None:
        """Write what probabilities (n, n_classes) say of rows (n,), of which only `learned` classes were known."""
        known = np.isin(self.codes[rows], learned)
        self.own[rows] = np.where(known, chances[np.arange(len(rows)), self.codes[rows]], np.nan)
        self.best[rows] = chances.argmax(axis=1)
        self.chance[rows] = chances.max(axis=1)


class LabelJudge:
    """The probe and the neighbors by which labels of train are judged, each row by what other documents say."""

    def __init__(self, train: Side, seed: int, reports: Progress) -> None:
        assert train.rows is not None
        self.train, self.rows, self._reports = train, train.rows, reports
        self.classes: Labels
        self.classes, self.codes = np.unique(self.rows.labels, return_inverse=True)
        names = np.unique(self.rows.documents)
        if len(self.classes) < 2 or len(names) < N_FOLDS:
            raise UserError(
                f"{self.rows.source.where} has {len(self.classes)} classes in {len(names)} labelled documents; "
                f"an audit of labels needs two or more in {N_FOLDS} or more"
            )
        self.names = pl.Series("label", self.classes).cast(pl.String)
        folds = np.random.default_rng(seed).permutation(len(names)) % N_FOLDS
        self.folds: IntArray = folds[np.searchsorted(names, self.rows.documents)]
        reports.stage("finding neighbors")
        self._nearest = Nearest(self.rows.stream(train.store, train.feature), seed)
        self._memory = free_memory() // 2

    def of_train(self) -> tuple[Judged, Float64Array]:
        """Judge the rows of train, each by a probe of the other folds; return also each class's recall, from half of
        the rows and from all, (2, n_classes).
        """
        judged, recalls = Judged.empty(self.codes), np.full((2, len(self.classes)), np.nan)
        guessed = np.zeros(len(self.codes), np.int64)
        for fold in range(N_FOLDS):
            self._reports.stage(f"judging labels: fold {fold + 1} of {N_FOLDS}")
            held, data = self.folds == fold, self.read(self.folds != fold)
            if fold == 0:
                # A list of penalties is chosen from by the first fold; all others keep the choice.
                dev = self.read(held), self.rows.labels[held]
                self._probe = LogisticRegressionProbe(C=_PENALTIES).fit(data, self.rows.labels[~held], dev=dev)
                self.C = self._probe.fit_report()["C"]
                half = ~held & (np.random.default_rng(0).permutation(len(held)) % 2 == 0)
                recalls[0] = self._recall(half, held)
            else:
                self._probe = self._fitted(data, ~held)
            for rows, chances in self._chances(self.read(held), np.flatnonzero(held), own=True):
                judged.take(rows, chances[0], self._learned)
                guessed[rows] = chances[1].argmax(axis=1)
        first = self.folds == 0
        recalls[1] = recall_of(self.codes[first], guessed[first], len(self.classes))
        return judged, recalls

    def of_test(self, test: Side) -> Judged:
        """Judge the rows of test by a probe of all rows of train, and by neighbors in train."""
        assert test.rows is not None
        self._reports.stage("judging labels of test")
        self._probe = self._fitted(self.read(np.ones(len(self.codes), np.bool_)), np.ones(len(self.codes), np.bool_))
        judged = Judged.empty(codes_of(test.rows.labels, self.classes))
        data = test.rows.stream(test.store, test.feature)
        for rows, chances in self._chances(data, np.arange(len(test.rows.rows)), own=False):
            judged.take(rows, chances[0], self._learned)
        return judged

    def table(self, side: Side, judged: Judged) -> pl.DataFrame:
        """Return the rows whose label may be wrong, the most probable first, with neighbors that disagree."""
        assert side.rows is not None
        rows = self.suspected(judged)
        rows = rows[np.argsort(judged.own[rows], kind="stable")]
        vectors = side.store.take(side.level, side.feature, side.rows.rows[rows])
        near = self._nearest.of(vectors, N_NEIGHBORS, rows if side is self.train else None)[1]
        pairs = pl.DataFrame({"of": np.repeat(np.arange(len(rows)), near.shape[1]), "near": near.ravel()})
        disagree = self.codes[near.ravel()] != np.repeat(judged.codes[rows], near.shape[1])
        pairs = pairs.filter(disagree).group_by("of", maintain_order=True).head(_N_SHOWN)
        shown = with_examples(self.train, pairs, self.names, self.codes, pairs["near"].to_numpy())
        found = side.shown(side.rows.rows[rows]).select(
            pl.lit(side.name).alias("side"),
            pl.all(),
            pl.Series("label", side.rows.labels[rows]).cast(pl.String),
            suggested=self.names.gather(judged.best[rows]),
            probability=pl.Series(judged.own[rows]),
            probability_suggested=pl.Series(judged.chance[rows]),
            of=pl.int_range(len(rows)),
        )
        against = shown.group_by("of").agg(pl.col("example").alias("neighbors"))
        return found.join(against, on="of", how="left", maintain_order="left").drop("of")

    def confusions(self, judged: Judged) -> pl.DataFrame:
        """Return the pairs of classes that are taken for each other, the most often first, with examples of both."""
        wrong = np.flatnonzero((judged.best != judged.codes) & ~np.isnan(judged.own))
        pairs = np.sort(np.stack([judged.codes[wrong], judged.best[wrong]]), axis=0)
        frame = pl.DataFrame({"first": pairs[0], "second": pairs[1], "place": wrong})
        counted = frame.group_by("first", "second", maintain_order=True)
        found = counted.agg(n_confused=pl.len(), place=pl.col("place").head(_N_SHOWN))
        found = found.sort("n_confused", descending=True, maintain_order=True).head(_MOST_PAIRS)
        sizes = pl.Series(np.bincount(judged.codes, minlength=len(self.classes)))
        each = found.with_row_index("of").explode("place")
        shown = with_examples(self.train, each, self.names, self.codes, each["place"].to_numpy())
        examples = shown.group_by("of", maintain_order=True).agg("example")["example"]
        return found.select(
            label=self.names.gather(found["first"]),
            other=self.names.gather(found["second"]),
            n_confused="n_confused",
            n_rows=sizes.gather(found["first"]) + sizes.gather(found["second"]),
            examples=examples,
        )

    def class_table(self, judged: Judged, recalls: Float64Array) -> pl.DataFrame:
        """Return a row for each class: its rows, its recall, and the recall from half of the rows and from all."""
        columns = {"recall": recall_of(judged.codes, judged.best, len(self.classes))}
        columns |= {"recall_from_half": recalls[0], "recall_from_all": recalls[1]}
        sizes = np.bincount(judged.codes, minlength=len(self.classes))
        frame = pl.DataFrame({"label": self.names, "n_rows": sizes, **columns})
        return frame.with_columns(pl.col(pl.Float64).fill_nan(None))

    def suspected(self, judged: Judged) -> IntArray:
        """Return the rows whose label may be wrong, by confident learning (Northcutt et al. 2021).

        Another class is more probable than the row's own, and as probable as it is on average for rows of that class.
        """
        known = ~np.isnan(judged.own)
        totals = np.bincount(judged.codes[known], judged.own[known], len(self.classes))
        means = totals / np.maximum(1, np.bincount(judged.codes[known], minlength=len(self.classes)))
        return np.flatnonzero(known & (judged.best != judged.codes) & (judged.chance >= means[judged.best]))

    def read(self, chosen: BoolArray) -> Vectors:
        """Return the vectors of some labelled rows of train, in memory if they fit."""
        return read_vectors(self.train.store, self.train.feature, self.rows.only(chosen), self._memory).X

    def _fitted(self, data: Vectors, chosen: BoolArray) -> LogisticRegressionProbe:
        return LogisticRegressionProbe(C=self.C).fit(data, self.rows.labels[chosen])

    @property
    def _learned(self) -> IntArray:
        return codes_of(self._probe.classes_, self.classes)

    def _recall(self, learned: BoolArray, held: BoolArray) -> Float64Array:
        if len(np.unique(self.codes[learned])) < 2:
            return np.full(len(self.classes), np.nan)
        probe = self._fitted(self.read(learned), learned)
        guessed = codes_of(probe.predict(self.read(held)), self.classes)
        return recall_of(self.codes[held], guessed, len(self.classes))

    def _chances(
        self, data: Vectors, numbers: IntArray, *, own: bool
    ) -> Iterator[tuple[IntArray, tuple[Float64Array, Float32Array]]]:
        """Yield numbers of rows, and the joined and the probe's own probabilities of classes, (n, n_classes) each."""
        learned = self._learned
        for span, vectors in chunks_of(data):
            rows = numbers[span.start : span.stop]
            of_probe = np.zeros((len(rows), len(self.classes)), np.float32)
            of_probe[:, learned] = self._probe.predict_proba(vectors)
            votes = self._votes(vectors, rows if own else None)
            joined = np.sqrt((of_probe + _LEAST_CHANCE) * (votes + _LEAST_VOTE))
            yield rows, (joined / joined.sum(axis=1, keepdims=True), of_probe)

    def _votes(self, vectors: FloatArray, own: IntArray | None) -> Float64Array:
        """Return the share of each class among the neighbors, weighted by squared cosines, (n, n_classes)."""
        cosines, positions = self._nearest.of(vectors, N_NEIGHBORS, own)
        weights = np.square(np.maximum(0, cosines)) + 1e-6
        votes = np.zeros((len(vectors), len(self.classes)))
        np.add.at(votes, (np.arange(len(votes))[:, None], self.codes[positions]), weights)
        shares: Float64Array = votes / np.maximum(votes.sum(axis=1, keepdims=True), 1e-12)
        return shares


def recall_of(codes: IntArray, guessed: IntArray, n_classes: int) -> Float64Array:
    """Return the share of the rows of each class, (n,), that were guessed right, (n_classes,); NaN for no rows."""
    counts = np.bincount(codes, minlength=n_classes)
    right = np.bincount(codes[codes == guessed], minlength=n_classes)
    return np.where(counts > 0, right / np.maximum(1, counts), np.nan)


def with_examples(side: Side, frame: pl.DataFrame, names: pl.Series, codes: IntArray, places: IntArray) -> pl.DataFrame:
    """Return a frame with the label and the text of the labelled row of each line, as a struct `example`."""
    assert side.rows is not None
    texts = side.shown(side.rows.rows[places])["text"]
    example = pl.DataFrame({"label": names.gather(codes[places]), "text": texts}).to_struct("example")
    return frame.with_columns(example)
