"""Probable label errors: probabilities of a probe that has not seen a row, joined with its neighbors' labels."""
# Their weighted geometric mean ranks flipped labels of banking77, UD-EWT and WNUT-17 better than either, and than
# cleanlab 2.9 does from the same probabilities: benchmarks/audit.py.

from __future__ import annotations

import numpy as np
import polars as pl

from bertfeat.audits.side import Side, nearest_of
from bertfeat.errors import UserError
from bertfeat.heads import LogisticRegressionProbe
from bertfeat.heads.base import Labels, codes_of
from bertfeat.memory import free_memory
from bertfeat.probes.rows import read_vectors
from bertfeat.progress import Progress
from bertfeat.records import BoolArray, IntArray
from bertfeat.vectors.array import Vectors, chunks_of

N_FOLDS, N_NEIGHBORS = 5, 10
# What a class gets that the probe, or no neighbor, has a chance for: neither alone can rule a label out.
_LEAST_CHANCE, _LEAST_VOTE = 1e-3, 3e-2
# The weight of the votes beside that of the probe.
_OF_VOTES = 0.25
_PENALTIES = [0.001, 0.01, 0.1]
# Tighter tolerances take four times the steps, and rank labels no better.
TOLERANCE = 1e-3
_N_SHOWN, _MOST_PAIRS = 3, 100
_IS_WRONG = pl.col("own").is_not_null() & (pl.col("best") != pl.col("code"))


class LabelJudge:
    """The probe and the neighbors by which labels of train are judged, each row by what other documents say.

    Judged rows are a frame: `place` among the labelled rows; `code` of the label, -1 for a class of test alone; `own`,
    the probability of the label, null where the probe did not learn its class; `best`, the most probable class, and
    `chance`, its probability; `guess`, the class of the probe alone; and `near`, the places of the neighbors in train.
    """

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
        self._nearest = nearest_of(self.rows.stream(train.store, train.feature), seed)
        self._memory = free_memory() // 2

    def of_train(self) -> pl.DataFrame:
        """Judge the rows of train, each by a probe of the other folds."""
        parts, penalties = [], _PENALTIES
        for fold in range(N_FOLDS):
            self._reports.stage(f"judging labels: fold {fold + 1} of {N_FOLDS}")
            held = self.folds == fold
            data, codes = self._read(held), self.codes[held]
            # The first fold chooses a penalty; all others keep the choice.
            probes = [self._fitted(~held, penalty) for penalty in penalties]
            best = int(np.argmin([self._loss(probe, data, codes) for probe in probes]))
            penalties = [penalties[best]]
            parts.append(self._judged(probes[best], data, np.flatnonzero(held), codes, own=True))
        self.C = penalties[0]
        return pl.concat(parts).sort("place")

    def of_test(self, test: Side) -> pl.DataFrame:
        """Judge the rows of test by a probe of all rows of train, and by neighbors in train."""
        assert test.rows is not None
        self._reports.stage("judging labels of test")
        probe, codes = self._fitted(self.folds >= 0, self.C), codes_of(test.rows.labels, self.classes)
        data = test.rows.stream(test.store, test.feature)
        return self._judged(probe, data, np.arange(len(codes)), codes, own=False)

    def table(self, side: Side, judged: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose label may be wrong, the most probable first, with neighbors that disagree.

        By confident learning (Northcutt et al. 2021): another class is more probable than the row's own, and as
        probable as it is on average for rows of that class.
        """
        assert side.rows is not None
        means = judged.group_by(best="code").agg(mean=pl.col("own").mean())
        found = judged.join(means, on="best", how="left", maintain_order="left")
        found = found.filter(_IS_WRONG & (pl.col("chance") >= pl.col("mean").fill_null(0)))
        found = found.sort("own", maintain_order=True).with_row_index("of")
        near = found.explode("near")
        near = near.filter(pl.Series(self.codes[near["near"].to_numpy()]) != pl.col("code"))
        shown = self._examples(near.group_by("of", maintain_order=True).head(_N_SHOWN), "near")
        rows = found["place"].to_numpy()
        table = side.shown(side.rows.rows[rows]).select(
            pl.lit(side.name).alias("side"),
            pl.all(),
            pl.Series("label", side.rows.labels[rows]).cast(pl.String),
            suggested=self.names.gather(found["best"]),
            probability=found["own"],
            probability_suggested=found["chance"],
            of=found["of"],
        )
        return (
            table.join(shown, on="of", how="left", maintain_order="left").drop("of").rename({"examples": "neighbors"})
        )

    def confusions(self, judged: pl.DataFrame) -> pl.DataFrame:
        """Return the pairs of classes that are taken for each other, the most often first, with examples of both."""
        pairs = [pl.min_horizontal("code", "best").alias("first"), pl.max_horizontal("code", "best").alias("second")]
        counted = judged.filter(_IS_WRONG).group_by(pairs, maintain_order=True)
        found = counted.agg(n_confused=pl.len(), place=pl.col("place").head(_N_SHOWN))
        found = found.sort("n_confused", descending=True, maintain_order=True).head(_MOST_PAIRS).with_row_index("of")
        sizes = pl.Series(np.bincount(self.codes))
        return found.join(self._examples(found.explode("place"), "place"), on="of", maintain_order="left").select(
            label=self.names.gather(found["first"]),
            other=self.names.gather(found["second"]),
            n_confused="n_confused",
            n_rows=sizes.gather(found["first"]) + sizes.gather(found["second"]),
            examples="examples",
        )

    def class_table(self, judged: pl.DataFrame) -> pl.DataFrame:
        """Return a row for each class: its rows, its recall, and the recall from half of the rows and from all.

        The last two are of the probe alone and of the first fold.
        """
        held = self.folds == 0
        first, half = judged.filter(held), ~held & (np.random.default_rng(0).permutation(len(held)) % 2 == 0)
        is_found = pl.lit(None, pl.Boolean)
        if len(np.unique(self.codes[half])) > 1:
            guessed = codes_of(self._fitted(half, self.C).predict(self._read(held)), self.classes)
            is_found = pl.Series(guessed) == pl.col("code")
        by_half = (
            first.with_columns(half=is_found)
            .group_by("code")
            .agg(recall_from_half=pl.col("half").mean(), recall_from_all=(pl.col("guess") == pl.col("code")).mean())
        )
        each = judged.group_by("code").agg(n_rows=pl.len(), recall=(pl.col("best") == pl.col("code")).mean())
        found = each.join(by_half, on="code", how="left").sort("code")
        return found.select(pl.Series(self.names), pl.exclude("code"))

    def _fitted(self, chosen: BoolArray, penalty: float) -> LogisticRegressionProbe:
        """Fit to some rows of train, bool (n_rows,)."""
        return LogisticRegressionProbe(C=penalty, tol=TOLERANCE).fit(self._read(chosen), self.rows.labels[chosen])

    def _loss(self, probe: LogisticRegressionProbe, data: Vectors, codes: IntArray) -> float:
        """Return the cross-entropy of labels (n,) of vectors; those of classes that were not learned do not count."""
        # Accuracy changes with a few rows, and the penalty that it chooses with the seed.
        chances, own = probe.predict_proba(data), codes_of(self.classes[codes], probe.classes_)
        return float(-np.log(np.maximum(chances[own >= 0, own[own >= 0]], 1e-12)).mean())

    def _read(self, chosen: BoolArray) -> Vectors:
        """Return the vectors of some labelled rows of train, in memory if they fit."""
        return read_vectors(self.train.store, self.train.feature, self.rows.only(chosen), self._memory).X

    def _judged(
        self, probe: LogisticRegressionProbe, data: Vectors, places: IntArray, codes: IntArray, *, own: bool
    ) -> pl.DataFrame:
        """Judge vectors of labels (n,) at places (n,), which are `own` places of train, by a probe and by neighbors."""
        parts, learned = [], codes_of(probe.classes_, self.classes)
        for span, vectors in chunks_of(data):
            here, code = places[span.start : span.stop], codes[span.start : span.stop]
            cosines, found = self._nearest.of(vectors, N_NEIGHBORS, here if own else None)
            near = np.maximum(0, found)
            rows = np.arange(len(here))
            votes, chances = np.zeros((len(here), len(self.classes))), np.zeros((len(here), len(self.classes)))
            np.add.at(votes, (rows[:, None], self.codes[near]), np.square(np.fmax(0, cosines)) + 1e-6)
            votes /= np.maximum(votes.sum(axis=1, keepdims=True), 1e-12)
            chances[:, learned] = probe.predict_proba(vectors)
            joined = (chances + _LEAST_CHANCE) ** (1 - _OF_VOTES) * (votes + _LEAST_VOTE) ** _OF_VOTES
            joined /= joined.sum(axis=1, keepdims=True)
            of_label = np.where(np.isin(code, learned), joined[rows, code], np.nan)
            columns = {"place": here, "code": code, "own": of_label, "best": joined.argmax(axis=1)}
            columns |= {"chance": joined.max(axis=1), "guess": chances.argmax(axis=1), "near": near.astype(np.int32)}
            parts.append(pl.DataFrame(columns).with_columns(pl.col("own").fill_nan(None)))
        return pl.concat(parts)

    def _examples(self, frame: pl.DataFrame, place: str) -> pl.DataFrame:
        """Return for each `of` a list of the labels and texts of rows of train, by their places in a column."""
        at = frame[place].to_numpy()
        texts = self.train.shown(self.rows.rows[at])["text"]
        example = pl.DataFrame({"label": self.names.gather(self.codes[at]), "text": texts}).to_struct("examples")
        return frame.select("of", example).group_by("of", maintain_order=True).agg("examples")
