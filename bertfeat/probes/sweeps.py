"""Sweeps: one head on each layer and each combination of layers of a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from bertfeat._version import __version__
from bertfeat.choices import Level
from bertfeat.errors import UserError, require
from bertfeat.heads.bootstrap import mean_and_deviation
from bertfeat.heads.registry import HeadSettings, head_class, heads_with_mix
from bertfeat.memory import free_memory
from bertfeat.probes.features import Choice, features_to_sweep, named_choice
from bertfeat.probes.fitted import as_store
from bertfeat.probes.labels import LabelTable
from bertfeat.probes.learningrows import LabelledRows, select_rows
from bertfeat.probes.sweepresult import HeldOut, Sweep, SweepRow
from bertfeat.probes.trials import FitRequest, Say, chosen_metric
from bertfeat.progress import Progress, reporting
from bertfeat.store.reader import Store

# The share of documents that is held out without a dev store.
_HELD_OUT = 0.2


def sweep_probes(
    store: str | Path | Store,
    label: str,
    *,
    level: str | None = None,
    head: str = "logreg",
    dev: str | Path | Store | None = None,
    features: str | Sequence[str | int] | None = None,
    seeds: int = 1,
    seed: int = 0,
    labels: LabelTable | None = None,
    dev_labels: LabelTable | None = None,
    max_memory: int | None = None,
    limit: int | None = None,
    progress: bool | Progress | None = None,
    **params: Unpack[HeadSettings],
) -> Sweep:
    """Fit and score one head on each layer of a store and on each combination of layers.

    Args:
        store: The store, or its folder; one extraction of all layers (`layers="all"`) serves the whole sweep.
        label: The column with the labels.
        level: See `fit_probe`.
        head: See `fit_probe`.
        dev: A store to score on; None holds out a fifth of the documents.
        features: Features, and mixes such as `mix_last4`, as a list or with commas. None is each layer, the
            concatenation and mean of the last four layers and of all, other stored features, and for neural heads a
            scalar mix of the last four layers and of all layers but the embeddings.
        seeds: The number of seeds of a random head.
        seed: The first seed, and the seed of the documents that are held out.
        labels: See `fit_probe`.
        dev_labels: See `fit_probe`.
        max_memory: See `fit_probe`.
        limit: See `fit_probe`.
        progress: See `extract`.
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
    where = opened.choose_level(level)
    memory = free_memory() // 2 if max_memory is None else max_memory
    request = FitRequest(opened, opened_dev, where, head, params, seeds, seed, memory)
    request.check(mix=None, dev_labels=dev_labels)
    choices = _choices(opened, where, head, features)
    for choice in choices:
        request.spec(choice)
    train = select_rows(opened, where, choices[0].feature, label, labels=labels, limit=limit)
    if opened_dev is None:
        train, held = train.split(_HELD_OUT, seed)
    else:
        held = select_rows(opened_dev, where, choices[0].feature, label, labels=dev_labels)
    classes = request.classes(train, held)
    rows = []
    with reporting(progress) as reports:
        for place, choice in enumerate(choices, start=1):
            say = _prefixed(reports.stage, f"{choice.name} ({place} of {len(choices)}): ")
            rows.append(_row(request, choice, train, held, say))
    return Sweep(
        store=opened.path.name,
        plan_hash=opened.manifest.plan_hash,
        model=opened.metadata["model"],
        level=where,
        label=label,
        head=head,
        params=dict(params),
        metric=rows[0].metric,
        seeds=tuple(range(seed, seed + seeds)) if head_class(head).is_random else (),
        dev=None if opened_dev is None else opened_dev.path.name,
        held_out=HeldOut(_HELD_OUT, seed) if opened_dev is None else None,
        n_train=len(train.rows),
        n_dev=len(held.rows),
        n_classes=len(classes),
        limit=limit,
        bertfeat=__version__,
        rows=tuple(rows),
    )


def _choices(store: Store, level: Level, head: str, features: str | Sequence[str | int] | None) -> list[Choice]:
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


def _row(request: FitRequest, choice: Choice, train: LabelledRows, dev: LabelledRows, say: Say) -> SweepRow:
    started = time.perf_counter()
    say("reading features")
    _, trials = request.fit(choice, *request.read(choice.feature, train, dev), say, bootstrap=True)
    found = request.store.feature(request.level, choice.feature)
    scores = [trial.score for trial in trials if trial.score is not None]
    metric = chosen_metric(scores[0], request.params)
    values = [score.scores.value(metric) for score in scores]
    mean, deviation = mean_and_deviation(values)
    interval = scores[0].intervals.get(metric)
    return SweepRow(
        feature=choice.name,
        layers=found.layers,
        dim=found.dim,
        metric=metric,
        score=mean,
        deviation=deviation,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        seconds=round(time.perf_counter() - started, 3),
        values=tuple(values),
        mixes=tuple(trial.report["mix"] for trial in trials if "mix" in trial.report),
    )


def _prefixed(say: Say, prefix: str) -> Say:
    return lambda text: say(prefix + text)
