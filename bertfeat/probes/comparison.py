"""Comparison of two probes on the same rows: differences of scores, agreement, and rows that only one gets right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from scipy.stats import binomtest

from bertfeat.choices import Level, Task
from bertfeat.config import names_in
from bertfeat.display import facts, html_table
from bertfeat.errors import UserError
from bertfeat.heads.base import check_labels, require_same_kind
from bertfeat.heads.bootstrap import Interval, Statistic, interval_of, resampled_scores
from bertfeat.heads.scores import Scores, agreement, label_statistic, pair_labels, score_pairs
from bertfeat.levels import LEVELS
from bertfeat.plots.tables import text_table
from bertfeat.probes.config import LabelTable
from bertfeat.probes.fitted import FittedProbe, as_store, load_probe
from bertfeat.probes.predictions import PREDICTION, PROBABILITY
from bertfeat.probes.targets import is_given
from bertfeat.store.reader import Store
from bertfeat.vectors.store import lengths_of

_HEADERS = ("score", "first", "second", "difference", "low", "high", "p")
# Columns of the examples: the two predictions, and the side that is right.
_FIRST, _SECOND, _RIGHT = "first", "second", "right"
# Texts as they are printed.
_SHORT = pl.col(pl.String).str.head(60)


@dataclass(frozen=True, slots=True)
class Difference(Interval):
    """A score of the first probe minus that of the second, its interval, and a two-sided p-value from the same draws.

    `p` is twice the share of resamples on the rarer side of 0, with one resample more on each side, and at most 1.
    """

    value: float
    p: float

    @classmethod
    def of(cls, value: float, mine: Statistic, theirs: Statistic, n_resamples: int) -> Difference:
        """Return the difference of two scores, with those of the same resamples."""
        drawn = resampled_scores(mine, n_resamples) - resampled_scores(theirs, n_resamples)
        rarer = 1 + min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
        interval = asdict(interval_of(drawn, mine.n_units))
        return cls(**interval, value=value, p=min(1.0, 2 * rarer / (1 + len(drawn))))


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two probes on the same labelled rows; made by `compare_probes`. Rows without a prediction are errors.

    The bootstrap of the `differences`, by score, draws the same documents for both probes. McNemar's test is at
    sentence level alone: it ignores documents, and the words of one are not independent.
    """

    level: Level
    label: str
    first: str  # the probe's name, head, feature and model
    second: str
    scores: tuple[Scores, Scores]
    differences: Mapping[str, Difference]
    agreement: float  # the share of equal predictions among the `n_compared` rows that have both
    kappa: float | None  # Cohen's kappa of these predictions; None where all of them are one label
    n_compared: int
    right: Mapping[str, int]  # the rows that `both` get right, `only_first`, `only_second`, `neither`
    mcnemar_p: float | None  # of the exact test
    examples: pl.DataFrame  # rows that one side alone gets `right`, with gold label and predictions `first`, `second`

    def __repr__(self) -> str:
        metric = "entity_f1" if "entity_f1" in self.differences else "accuracy"
        found = self.differences[metric]
        return f"Comparison({metric} {found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f}), p {found.p:.4f})"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        examples = html_table("rows that only one gets right", self.examples.columns, self.examples.rows())
        return html_table(repr(self), _HEADERS, self._rows()) + examples

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; labels that are keys become text."""
        return {
            **self._facts(),
            "scores": [scores.to_dict() for scores in self.scores],
            "differences": {name: asdict(found) for name, found in self.differences.items()},
            "examples": self.examples.to_dicts(),
        }

    def lines(self) -> list[str]:
        """Return the comparison as lines to read."""
        some = next(iter(self.differences.values()))
        draws = f"{some.n_resamples} resamples of {some.n_units} documents, the same for both"
        parts = [facts(self._facts()), f"first minus second, {some.level:.0%} intervals and p from {draws}"]
        parts.append(text_table(_HEADERS, self._rows()))
        if len(self.examples):
            parts.append(text_table(self.examples.columns, self.examples.with_columns(_SHORT).rows()))
        return "\n\n".join(parts).splitlines()

    def _facts(self) -> dict[str, Any]:
        names = ("first", "second", "level", "label", "right", "n_compared", "agreement", "kappa", "mcnemar_p")
        return {name: getattr(self, name) for name in names}

    def _rows(self) -> list[tuple[object, ...]]:
        found = self.differences.items()
        values = {name: [scores.value(name) for scores in self.scores] for name in self.differences}
        return [(name, *values[name], one.value, one.low, one.high, one.p) for name, one in found]


def compare_probes(
    one: FittedProbe | str | Path,
    other: FittedProbe | str | Path,
    store: str | Path | Store,
    other_store: str | Path | Store | None = None,
    *,
    label: str | None = None,
    labels: LabelTable | None = None,
    columns: str | Sequence[str] = (),
    n_examples: int = 5,
    n_resamples: int = 1000,
) -> Comparison:
    """Compare two classifiers on the same labelled rows, each by its own feature.

    Args:
        one: The first probe, or its folder.
        other: The second probe, of the same level and kind of labels.
        store: A store with the features of both.
        other_store: A store of the same documents for the second probe, if its feature is of another model.
        label: The column with the gold labels; None for the one that both were fitted on.
        labels: A file or frame with the gold labels; see `ProbeConfig`.
        columns: Further columns of the examples, as for `FittedProbe.predict`.
        n_examples: The number of rows to show that only the first probe gets right, and that only the second does: the
            first ones of the store.
        n_resamples: The number of resamples of the bootstrap.

    Raises:
        UserError: The probes cannot be compared, a store has other features, labels or rows, or there is no column.
        StoreError: A part is missing or damaged.

    Examples:
        >>> from bertfeat import extract, fit_probe
        >>> store = extract("examples/data/wnut17_dev.conll", tmp / "features", levels="word", layers="0,6")
        >>> low, high = (fit_probe(store, "label", feature=layer, head="centroid") for layer in (0, 6))
        >>> sorted(compare_probes(low, high, store).differences)
        ['accuracy', 'entity_f1', 'macro_f1']
    """
    probes = [probe if isinstance(probe, FittedProbe) else load_probe(probe) for probe in (one, other)]
    stores = [as_store(place) for place in (store, other_store or store)]
    gold = _common_label(probes[0], probes[1], label)
    frame = _predicted(probes, stores, gold, labels, names_in(columns))
    truth, level = check_labels(frame[gold].to_numpy(), what=f"column {gold!r}"), probes[0].level
    require_same_kind(truth, f"column {gold!r}", probes[0].probe.classes_, f"probe {probes[0].name}")
    lengths = None if level is Level.SENTENCE else lengths_of(frame["doc_id"].rle_id().cast(pl.Int64).to_numpy())
    guesses = [frame[side] for side in (_FIRST, _SECOND)]
    pairs = [pair_labels(truth, side.to_numpy(), side.is_not_null().to_numpy()) for side in guesses]
    scores = [score_pairs(pair, probe.probe.classes_, lengths) for pair, probe in zip(pairs, probes, strict=True)]
    first, second = (pair.true == pair.predicted for pair in pairs)
    only = {_FIRST: first & ~second, _SECOND: second & ~first}
    groups = {"both": first & second, "only_first": only[_FIRST], "only_second": only[_SECOND]}
    right = {name: int(rows.sum()) for name, rows in {**groups, "neither": ~(first | second)}.items()}
    n_differ, mcnemar_p = right["only_first"] + right["only_second"], None
    if level is Level.SENTENCE:
        mcnemar_p = float(binomtest(right["only_first"], n_differ).pvalue) if n_differ else 1.0
    differences = {}
    for name in (name for name in scores[0].values if name in scores[1].values):
        mine, theirs = (label_statistic(name, pair, lengths) for pair in pairs)
        differences[name] = Difference.of(scores[0].value(name) - scores[1].value(name), mine, theirs, n_resamples)
    compared = frame.select(_FIRST, _SECOND).drop_nulls()
    share, kappa = agreement(*(check_labels(compared[side].to_numpy()) for side in (_FIRST, _SECOND)))
    examples = [frame.filter(rows).head(n_examples).with_columns(right=pl.lit(side)) for side, rows in only.items()]
    names = [f"{one.name} ({one.probe.head} on {one.spec.feature} of {one.spec.model})" for one in probes]
    return Comparison(
        level=level,
        label=gold,
        first=names[0],
        second=names[1],
        scores=(scores[0], scores[1]),
        differences=differences,
        agreement=share,
        kappa=kappa,
        n_compared=len(compared),
        right=right,
        mcnemar_p=mcnemar_p,
        examples=pl.concat(examples),
    )


def _common_label(one: FittedProbe, other: FittedProbe, label: str | None) -> str:
    """Return the column with the gold labels, after a check that the probes predict the same kind of labels."""
    mine, theirs = f"probe {one.name}", f"probe {other.name}"
    if not one.probe.task == other.probe.task == Task.CLASSIFY:
        raise UserError(f"{mine} learned to {one.probe.task}, {theirs} to {other.probe.task}; compare classifiers")
    if one.level != other.level:
        raise UserError(f"{mine} works at level {one.level}, {theirs} at level {other.level}; compare probes of one")
    require_same_kind(one.probe.classes_, mine, other.probe.classes_, theirs)
    if label is None and one.label != other.label:
        raise UserError(f"{mine} learned {one.label!r}, {theirs} {other.label!r}; pass `label`")
    return label or one.label


def _predicted(
    probes: Sequence[FittedProbe], stores: Sequence[Store], gold: str, labels: LabelTable | None, names: Sequence[str]
) -> pl.DataFrame:
    """Return the rows with a gold label, and the predictions of each probe in a column."""
    if clash := [name for name in (_FIRST, _SECOND, _RIGHT) if name in (*names, gold)]:
        raise UserError(f"column {clash[0]!r} has the name of a result of the comparison; leave it out or rename it")
    frame = probes[0].predict(stores[0], columns=names, label=gold, labels=labels)
    other = probes[1].predict(stores[1], label=gold, labels=labels)
    keys, both = [*LEVELS[probes[0].level].keys, gold], f"{stores[0].path} and {stores[1].path}"
    if not frame.select(keys).equals(other.select(keys)):
        raise UserError(f"{both} have different rows or labels {gold!r}; extract the same documents for both")
    frame = frame.drop(PROBABILITY).rename({PREDICTION: _FIRST}).with_columns(other[PREDICTION].alias(_SECOND))
    frame = frame.filter(is_given(frame[gold]))
    if not frame.select(_FIRST, _SECOND).drop_nulls().height:
        raise UserError(f"{stores[0].path}: no row has a label {gold!r} and predictions of both probes")
    return frame
