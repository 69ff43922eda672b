"""Controls of a sweep: control tasks, baselines that use no trained features, and codelengths of labels."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from bertfeat.choices import Level, Task
from bertfeat.config import names_in
from bertfeat.errors import BertfeatWarning, ConfigError, UserError
from bertfeat.heads.base import Labels
from bertfeat.heads.registry import heads_with
from bertfeat.heads.targets import encode
from bertfeat.levels import LEVELS
from bertfeat.probes.rows import LabelledRows
from bertfeat.probes.scoring import score_predicted
from bertfeat.probes.sweep import SweepRow
from bertfeat.progress import Progress
from bertfeat.records import Float64Array, IntArray
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store, open_store

if TYPE_CHECKING:
    from bertfeat.probes.features import FeatureChoice
    from bertfeat.probes.fitting import ProbeTask, Trial

_RANDOM, _RANDOM_DEV = "random-weights", "random-weights-dev"
_BASELINES = ("majority", "type", _RANDOM, _RANDOM_DEV)
# Where the portions of the online code end, as shares of the rows (Voita and Titov 2020, 2.2.2).
_SHARES = np.array([0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1])
# The first portion has as many rows, of two documents: from fewer, some heads cannot learn.
_LEAST_ROWS = 10
# The probabilities of a probe fitted to few rows are too sure of themselves: a higher temperature makes them flatter.
_TEMPERATURES = (1, 2, 4, 8)

#: Returns the probabilities of the classes of rows that were seen for rows to be coded, (n_coded, n_seen_classes).
Predict = Callable[[LabelledRows, LabelledRows], Float64Array]


def baselines_of(given: str | Sequence[str] | None) -> dict[str, str]:
    """Return the baselines that are named, and the folder of each that needs one.

    Examples:
        >>> baselines_of("majority,random-weights=random")
        {'majority': '', 'random-weights': 'random'}
    """
    found = {}
    for item in names_in(given):
        name, _, folder = item.partition("=")
        if name not in _BASELINES:
            raise ConfigError(f"baseline {name!r}: unknown; choose among {', '.join(_BASELINES)}")
        if bool(folder) != (name in (_RANDOM, _RANDOM_DEV)):
            raise ConfigError(f"baseline {item!r}: {'it takes no folder' if folder else f'write {name}=FOLDER'}")
        found[name] = folder
    return found


def check_controls(task: ProbeTask, choices: Iterable[FeatureChoice]) -> None:
    """Refuse controls that the targets, the level, the head or the stores of a sweep cannot have."""
    config, named = task.config, baselines_of(task.config.baselines)
    asked = [name for name in ("control", "type", "mdl", "majority") if name in named or getattr(config, name, False)]
    if asked and task.task is not Task.CLASSIFY:
        raise UserError(f"{asked[0]} needs one label per row, and the task is {task.task}; leave it out")
    if asked and asked[0] in ("control", "type") and not LEVELS[task.level].surface:
        raise UserError(f"{asked[0]} needs words that repeat, and level {task.level} has texts; use level word")
    if config.mdl and not hasattr(task.head, "predict_proba"):
        able = heads_with("predict_proba")
        raise UserError(f"head {config.head} has no probabilities, which mdl needs; it goes with {able}")
    if (_RANDOM_DEV in named) != (_RANDOM in named and task.dev is not None):
        raise UserError(
            f"baselines {', '.join(named)}: {_RANDOM} is a store of the texts to learn from, and {_RANDOM_DEV} one of "
            "the texts of dev; name both beside dev, and only the first without"
        )
    if _RANDOM in named:
        random = _with_random_weights(task, named)
        for mine, other in ((task.store, random.store), (task.dev, random.dev)):
            if mine is not None and other is not None:
                _require_twin(mine, other, task.level, [choice.feature for choice in choices])


def measure(
    task: ProbeTask,
    choice: FeatureChoice,
    rows: tuple[LabelledRows, LabelledRows],
    trials: Sequence[Trial],
    metric: str,
    fit: Callable[[ProbeTask, LabelledRows, LabelledRows], Sequence[Trial]],
    reports: Progress,
) -> dict[str, float]:
    """Return the values of a sweep's controls for one feature, by the names of their columns.

    `rows` are those to learn from and to score on, `trials` the fits of the feature; `fit` fits the same head to the
    same feature, with other labels or stores.
    """
    values, config, named = dict[str, float](), task.config, baselines_of(task.config.baselines)
    # What there is to warn of was said when the feature was fitted.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BertfeatWarning)
        if config.control:
            drawn = [
                replace(part, labels=control_labels(_types(store, part), rows[0].labels, config.seed))
                for part, store in zip(rows, (task.store, task.dev or task.store), strict=True)
            ]
            control = _mean(fit(task, *drawn), "accuracy")
            values |= {"control": control, "selectivity": _mean(trials, "accuracy") - control}
        if _RANDOM in named:
            random = _mean(fit(_with_random_weights(task, named), *rows), metric)
            values |= {"random_weights": random, "above_random": _mean(trials, metric) - random}
        if config.mdl:
            values |= _code_of_feature(task, choice, rows[0], trials[0].report, reports)
    return values


def control_labels(types: Iterable[str], labels: Labels, seed: int) -> Labels:
    """Return a random label for each word (Hewitt and Liang 2019), the same for each word of one type.

    The hash of the type and the seed is a place among the sorted `labels`, (n_labels,), whose label is taken: labels
    are as frequent among types as in `labels`. Nothing else matters, neither order nor other types.

    Examples:
        >>> control_labels(["the", "cat", "saw", "the", "dog"], np.array(["DET", "NOUN", "NOUN", "VERB"]), 3).tolist()
        ['NOUN', 'VERB', 'DET', 'NOUN', 'VERB']
    """
    ordered, words = np.sort(labels), list(types)
    places = {}
    for word in set(words):
        digest = hashlib.blake2b(f"{seed} {word}".encode(), digest_size=8).digest()
        places[word] = int.from_bytes(digest, "big") * len(ordered) >> 64
    return ordered[[places[word] for word in words]]


def baseline_rows(task: ProbeTask, train: LabelledRows, dev: LabelledRows, metric: str) -> tuple[SweepRow, ...]:
    """Return the scores of predictions without features: the most frequent label, of all rows or of each word type."""
    rows = []
    for name in [one for one in baselines_of(task.config.baselines) if one in ("majority", "type")]:
        types, others = [""] * len(train.labels), [""] * len(dev.labels)
        if name == "type":
            types, others = _types(task.store, train), _types(task.dev or task.store, dev)
        guesses, classes = frequent_labels(types, train.labels, others), np.unique(train.labels)
        score = score_predicted(dev.labels, guesses, classes, lengths=dev.lengths, bootstrap=[metric])
        value, interval = score.values[metric], score.intervals[metric]
        is_coded = task.config.mdl and name == "majority"
        code = online_code(train.with_vector, task.config.seed) if is_coded else {}
        rows.append(SweepRow(name, (), 0, metric, value, None, interval.low, interval.high, 0.0, (value,), (), code))
    return tuple(rows)


def frequent_labels(types: Sequence[str], labels: Labels, others: Iterable[str]) -> Labels:
    """Return the most frequent label of each type among `others`; of a type without labels, that of all.

    Of labels that are equally frequent it is the first in order.

    Examples:
        >>> frequent_labels(["run", "run", "run", "a"], np.array(["V", "N", "V", "D"]), ["run", "b"]).tolist()
        ['V', 'V']
    """
    classes, codes = np.unique(labels, return_inverse=True)
    best = pl.DataFrame({"type": types, "code": codes}).group_by("type").agg(pl.col("code").mode().min())
    usual, most = dict(best.iter_rows()), int(np.bincount(codes).argmax())
    return np.asarray(classes[[usual.get(name, most) for name in others]])


def online_code(rows: LabelledRows, seed: int, predict: Predict | None = None) -> dict[str, float]:
    """Return the codelength of the labels of rows in the online code (Voita and Titov 2020), in kbits; compression.

    Each portion (see `portions_of`) is coded by what `predict` learned of those before it, or by the shares of labels.
    """
    classes, codes = encode(Task.CLASSIFY, rows.labels, what=rows.source.where)
    portions, uniform = portions_of(rows.documents, seed), float(np.log2(len(classes)))
    bits = uniform * int((portions == 0).sum())
    for portion in range(1, int(portions.max()) + 1):
        seen, coded = portions < portion, portions == portion
        counts = np.bincount(codes[seen], minlength=len(classes))
        probabilities = np.tile(counts / seen.sum(), (int(coded.sum()), 1))
        if predict is not None and np.count_nonzero(counts) > 1:
            probabilities[:, counts > 0] = predict(rows.only(seen), rows.only(coded))
        bits += mixture_bits(probabilities, codes[coded], int(seen.sum()))
    return {"codelength": bits / 1000, "compression": uniform * len(codes) / bits}


def _code_of_feature(
    task: ProbeTask, choice: FeatureChoice, train: LabelledRows, report: Mapping[str, object], reports: Progress
) -> dict[str, float]:
    """Return the code of the labels of the rows of train that have a vector, given a feature."""
    config, seed = task.config, task.config.seed if task.head.is_random else None
    chosen = {name: value for name, value in report.items() if name == task.head.penalty_name}
    # All of it is in the store of train; dev has no part in it.
    alone = replace(task, dev=None, config=replace(config, params={**config.params, **chosen}))

    def predict(seen: LabelledRows, coded: LabelledRows) -> Float64Array:
        reports.stage(f"{choice.name}: coding the labels of {len(coded.rows)} rows by {len(seen.rows)}")
        data, following = alone.read(choice.feature, seen, coded)
        assert following is not None
        probe: Any = alone.probe(seed=seed, mix=choice.mix)
        found = probe.fit(data.vectors_for(probe), data.rows.labels).predict_proba(following.vectors_for(probe))
        return np.concatenate(found) if probe.is_tagger else np.asarray(found)

    return online_code(train.with_vector, config.seed, predict)


def portions_of(documents: IntArray, seed: int) -> IntArray:
    """Return the portion of each row of the online code, int64 (n_rows,), given the document of each.

    Documents are in the random order of the seed. A portion ends with the document that brings the rows to 0.1, 0.2,
    0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25, 50 and 100 percent of all. The first one has two documents and 10 rows or more.
    """
    names, places, lengths = np.unique(documents, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    n_rows = np.cumsum(lengths[order])
    least = max(2, int(np.searchsorted(n_rows, _LEAST_ROWS)) + 1)
    if least >= len(names):
        raise UserError(f"too few labelled documents ({len(names)}) for a codelength; leave mdl out, or label more")
    ends = np.unique(np.maximum(np.searchsorted(n_rows, _SHARES * n_rows[-1]) + 1, least))
    portion_of = np.searchsorted(ends, np.argsort(order), side="right")
    return portion_of[places].astype(np.int64)


def mixture_bits(probabilities: Float64Array, codes: IntArray, n_seen: int) -> float:
    """Return the bits of the labels of a portion by a probe's probabilities (n_rows, n_classes), made careful.

    The code is the Bayesian mixture of five: the uniform one, and the probe's at four temperatures. It is at most
    log2(5) bits longer than the shortest of them, so that a probe that knows nothing costs hardly more than the uniform
    code, and one that is right loses 2.3 bits per portion. Each probability is mixed with one row more than the
    `n_seen`, of a class at random: a class that no row had before costs log2(n_classes * (n_seen + 1)) bits.
    """
    n_rows, n_classes = probabilities.shape
    totals = [n_rows * np.log2(n_classes)]
    for temperature in _TEMPERATURES:
        flatter = probabilities ** (1 / temperature)
        own = (flatter / flatter.sum(axis=1, keepdims=True))[np.arange(n_rows), codes]
        totals.append(-np.log2((n_seen * own + 1 / n_classes) / (n_seen + 1)).sum())
    return float(np.log2(len(totals)) - np.logaddexp2.reduce(-np.array(totals)))


def _mean(trials: Sequence[Trial], metric: str) -> float:
    return fmean(trial.score.values[metric] for trial in trials if trial.score is not None)


def _types(store: Store, rows: LabelledRows) -> list[str]:
    """Return the word or token of each row."""
    surface = LEVELS[rows.level].surface
    return store.polars(rows.level, [surface])[surface].gather(rows.rows).to_list()


def _with_random_weights(task: ProbeTask, named: Mapping[str, str]) -> ProbeTask:
    dev = open_store(named[_RANDOM_DEV]) if _RANDOM_DEV in named else None
    return replace(task, store=open_store(named[_RANDOM]), dev=dev)


def _require_twin(mine: Store, other: Store, level: Level, features: Sequence[str]) -> None:
    """Refuse a store that has other rows than mine, other features, or the same weights."""
    keys = list(LEVELS[level].names)
    if level not in other.levels or not mine.polars(level, keys).equals(other.polars(level, keys)):
        raise UserError(
            f"{other.path}: its rows at level {level} are not those of {mine.path}; extract the same corpus alike"
        )
    for feature in features:
        spec, found = FeatureSpec.of(mine, level, feature), FeatureSpec.of(other, level, feature)
        if spec.weights_sha256 == found.weights_sha256:
            raise UserError(
                f"{other.path}: extracted with the weights of {mine.path}; extract it with random weights, by a model "
                "that python -m bertfeat.pipelines.random_weights makes"
            )
        alike = replace(found.under_name_of(spec), weights_sha256=spec.weights_sha256)
        spec.require_same(alike, mine=f"store {mine.path.name}", theirs=f"store {other.path.name}")
