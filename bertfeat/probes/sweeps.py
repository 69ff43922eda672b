"""Sweeps: one head on each layer and each combination of layers of a store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Unpack

from bertfeat._version import __version__
from bertfeat.errors import require
from bertfeat.heads.bootstrap import mean_and_deviation
from bertfeat.heads.registry import head_class
from bertfeat.probes.config import ProbeConfig, ProbeSettings
from bertfeat.probes.features import FeatureChoice, choose_features
from bertfeat.probes.fitting import ProbeTask, Say, chosen_metric
from bertfeat.probes.learningrows import LabelledRows
from bertfeat.probes.sweepresult import Sweep, SweepRow
from bertfeat.progress import Progress, reporting
from bertfeat.store.reader import Store


def sweep_probes(
    store: str | Path | Store,
    label: str,
    config: ProbeConfig | None = None,
    *,
    progress: bool | Progress | None = None,
    **settings: Unpack[ProbeSettings],
) -> Sweep:
    """Fit and score one head on each layer of a store and on each combination of layers.

    Args:
        store: The store, or its folder; one extraction of all layers (`layers="all"`) serves the whole sweep.
        label: The column with the labels.
        config: The settings as one object; or pass them by name in `settings`, not both.
        progress: See `extract`.
        **settings: The fields of `ProbeConfig`, and the head's parameters.

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
    instead = "name the `features` of a sweep"
    config = ProbeConfig.of(config, settings, {"feature": instead, "mix": instead})
    task = ProbeTask.of(store, config)
    choices = choose_features(task.store, task.level, config.head, config.features)
    for choice in choices:
        task.spec(choice)
    train, held = task.rows(choices[0].feature, label)
    if held is None:
        train, held = train.split(config.hold_out, config.seed)
    classes = task.classes(train, held)
    rows = []
    with reporting(progress) as reports:
        for place, choice in enumerate(choices, start=1):
            say = _prefixed(reports.stage, f"{choice.name} ({place} of {len(choices)}): ")
            rows.append(_row(task, choice, train, held, say))
    return Sweep(
        store=task.store.path.name,
        plan_hash=task.store.manifest.plan_hash,
        model=task.store.metadata["model"],
        level=task.level,
        label=label,
        head=config.head,
        params=dict(config.params),
        metric=rows[0].metric,
        seeds=tuple(range(config.seed, config.seed + config.seeds)) if head_class(config.head).is_random else (),
        seed=config.seed,
        dev=None if task.dev is None else task.dev.path.name,
        held_out=config.hold_out if task.dev is None else None,
        n_train=len(train.rows),
        n_dev=len(held.rows),
        n_classes=len(classes),
        limit=config.limit,
        bertfeat=__version__,
        rows=tuple(rows),
    )


def _row(task: ProbeTask, choice: FeatureChoice, train: LabelledRows, dev: LabelledRows, say: Say) -> SweepRow:
    started = time.perf_counter()
    say("reading features")
    _, trials = task.fit(choice, *task.read(choice.feature, train, dev), say, bootstrap=True)
    found = task.store.feature(task.level, choice.feature)
    scores = [trial.score for trial in trials if trial.score is not None]
    metric = chosen_metric(scores[0], task.config.params)
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
