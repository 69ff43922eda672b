"""Sweeps: one head on each layer and each combination of layers of a store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from bertfeat._version import __version__
from bertfeat.config import Level
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, encode_labels
from bertfeat.heads.bootstrap import mean_and_deviation
from bertfeat.heads.registry import head_class, heads_with_mix
from bertfeat.memory import free_memory
from bertfeat.probes.extras import require
from bertfeat.probes.features import Choice, features_to_sweep, named_choice
from bertfeat.probes.fitted import as_store
from bertfeat.probes.fitting import check_held, check_request
from bertfeat.probes.labels import LabelTable, label_source
from bertfeat.probes.learningrows import LabelledRows, read_vectors, select_rows
from bertfeat.probes.sweepresult import Sweep, SweepRow
from bertfeat.probes.trials import Say, Trial, chosen_metric, fit_seeds
from bertfeat.progress import Progress, reporting
from bertfeat.settings import HeadSettings
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store

#: The share of documents that is held out where there is no dev store.
HELD_OUT = 0.2


def sweep_probes(
    store: str | Path | Store,
    label: str,
    *,
    level: str = "sentence",
    head: str = "logreg",
    dev: str | Path | Store | None = None,
    features: str | Sequence[str] | None = None,
    seeds: int = 1,
    seed: int = 0,
    labels: LabelTable | None = None,
    dev_labels: LabelTable | None = None,
    max_memory: int | None = None,
    limit: int | None = None,
    progress: bool | Progress = False,
    **params: Unpack[HeadSettings],
) -> Sweep:
    """Fit and score one head on each layer of a store and on each combination of layers.

    Args:
        store: The store, or its folder; one extraction of all layers (`layers="all"`) serves the whole sweep.
        label: The column with the labels.
        level: token, word or sentence.
        head: See `fit_probe`.
        dev: A store to score on; None holds out a fifth of the documents.
        features: Features, and mixes such as `mix_last4`, as a list or with commas. None for each layer that is stored,
            the concatenation and mean of the last four and of all, what else is stored, and for neural heads a scalar
            mix of the last four and of all layers but the embeddings.
        seeds: How many seeds a random head is fitted with.
        seed: The first of them, and the seed of the documents that are held out.
        labels: See `fit_probe`.
        dev_labels: See `fit_probe`.
        max_memory: See `fit_probe`.
        limit: See `fit_probe`.
        progress: See `bertfeat.progress.Progress`.
        **params: The head's parameters.

    Raises:
        UserError: A setting, a label column or the data cannot be used.
        StoreError: A part is missing or damaged.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/wnut17_dev.conll", tmp / "features", levels="word", layers="5,6")
        >>> sweep = sweep_probes(store, "label", level="word", head="centroid")
        >>> [row.feature for row in sweep.rows]
        ['layer_05', 'layer_06', 'concat_05_06', 'mean_05_06']
        >>> [path.name for path in sorted(sweep.write(tmp / "sweep").iterdir())]
        ['plot.png', 'plot.svg', 'result.json', 'table.csv']
    """
    require("matplotlib")
    opened, opened_dev = as_store(store), None if dev is None else as_store(dev)
    where = opened.schema(level).level
    check_request(head, where, mix=None, seeds=seeds, params=params, dev=opened_dev, dev_labels=dev_labels)
    choices = _choices(opened, where, head, features)
    if opened_dev is not None:
        for choice in choices:
            spec = FeatureSpec.of(opened, where, choice.feature)
            spec.find_in(opened_dev, mine=f"store {opened.path.name}")
    train = select_rows(opened, where, choices[0].feature, label, labels=labels, limit=limit)
    if opened_dev is None:
        train, held = train.split(HELD_OUT, seed)
    else:
        held = select_rows(opened_dev, where, choices[0].feature, label, labels=dev_labels)
    data = _Data(opened, opened_dev or opened, where, train, held)
    classes = data.check(label_source(opened, label, labels))
    memory = free_memory() // 2 if max_memory is None else max_memory
    rows = []
    with reporting(progress) as reports:
        for place, choice in enumerate(choices, start=1):
            say = _prefixed(reports.stage, f"{choice.name} ({place} of {len(choices)}): ")
            rows.append(_row(data, choice, head, memory, seeds, seed, params, say))
    settings = {
        "store": opened.path.name,
        "plan_hash": opened.manifest["plan_hash"],
        "model": opened.metadata["model"],
        "level": str(where),
        "label": label,
        "head": head,
        "params": dict(params),
        "metric": rows[0].metric,
        "seeds": list(range(seed, seed + seeds)) if head_class(head).is_random else [],
        "dev": None if opened_dev is None else opened_dev.path.name,
        "held_out": None if opened_dev is not None else {"share_of_documents": HELD_OUT, "seed": seed},
        "n_train": len(train.rows),
        "n_dev": len(held.rows),
        "n_classes": len(classes),
        "limit": limit,
        "bertfeat": __version__,
    }
    return Sweep(tuple(rows), settings)


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    """The rows of train and of dev, and the stores that they stand in."""

    store: Store
    dev_store: Store
    level: Level
    train: LabelledRows
    dev: LabelledRows

    def check(self, source: str) -> Labels:
        """Return the classes of train.

        Raises:
            UserError: There is one alone, or dev has no labelled rows or labels of another kind.
        """
        assert self.train.labels is not None
        classes, _ = encode_labels(self.train.labels[self.train.has_vector], what=source)
        check_held(self.dev, self.dev_store, self.level, classes)
        return classes


def _choices(store: Store, level: Level, head: str, features: str | Sequence[str] | None) -> list[Choice]:
    if features is None:
        return features_to_sweep(store, level, with_mixes=head_class(head).has_mix)
    if isinstance(features, str):
        features = [name.strip() for name in features.split(",") if name.strip()]
    if not features:
        raise UserError("features is empty; name one or more, or leave it out for all")
    choices = list(dict.fromkeys(named_choice(store, level, name) for name in features))
    for choice in choices:
        if choice.mix is not None and not head_class(head).has_mix:
            raise UserError(f"feature {choice.name}: head {head} has no scalar mix; mixes go with {heads_with_mix()}")
    return choices


def _row(
    data: _Data,
    choice: Choice,
    head: str,
    memory: int,
    seeds: int,
    seed: int,
    params: Mapping[str, Any],
    say: Say,
) -> SweepRow:
    started = time.perf_counter()
    say("reading features")
    train = read_vectors(data.store, data.level, choice.feature, data.train, max_memory=memory)
    rest = memory // 2 if train.is_streamed else memory - train.n_bytes
    dev = read_vectors(data.dev_store, data.level, choice.feature, data.dev, max_memory=rest)
    _, trials = fit_seeds(
        head, choice, data.level, train, dev, seeds=seeds, seed=seed, params=params, say=say, bootstrap=True
    )
    found = data.store.feature(data.level, choice.feature)
    return _row_of(choice, found.layers, found.dim, trials, params, time.perf_counter() - started)


def _row_of(
    choice: Choice, layers: tuple[int, ...], dim: int, trials: list[Trial], params: Mapping[str, Any], seconds: float
) -> SweepRow:
    scores = [trial.score for trial in trials if trial.score is not None]
    metric = chosen_metric(scores[0], params)
    values = [score.scores.value(metric) for score in scores]
    mean, deviation = mean_and_deviation(values)
    interval = scores[0].intervals.get(metric)
    return SweepRow(
        feature=choice.name,
        layers=layers,
        dim=dim,
        metric=metric,
        score=mean,
        deviation=deviation,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        seconds=round(seconds, 3),
        values=tuple(values),
        mixes=tuple(trial.report["mix"] for trial in trials if "mix" in trial.report),
    )


def _prefixed(say: Say, prefix: str) -> Say:
    return lambda text: say(prefix + text)
