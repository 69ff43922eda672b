"""Fits and sweeps: from a labelled store to a fitted probe, or to the scores of one head on each feature."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias, Unpack

import numpy as np
import polars as pl

from bertfeat._version import __version__
from bertfeat.choices import Level, Task
from bertfeat.display import counted
from bertfeat.errors import BertfeatWarning, UserError, require
from bertfeat.heads.base import DEV_METRICS, Probe, require_same_kind
from bertfeat.heads.registry import DEFAULT_HEADS, head_class, heads_with, make_head
from bertfeat.heads.scores import mean_and_deviation
from bertfeat.heads.targets import encode
from bertfeat.levels import WORDS
from bertfeat.memory import free_memory
from bertfeat.probes.config import LabelTable, ProbeConfig, ProbeSettings
from bertfeat.probes.controls import baseline_rows, check_controls, measure
from bertfeat.probes.description import DevRows, MeanScore, Training
from bertfeat.probes.features import FeatureChoice, choose_feature, choose_features
from bertfeat.probes.fitted import FittedProbe, as_store
from bertfeat.probes.rows import Dataset, LabelledRows, LabelSource, read_vectors, select_rows, warn_of_gaps
from bertfeat.probes.scoring import ProbeScore, score_rows
from bertfeat.probes.sweep import Sweep, SweepRow
from bertfeat.probes.targets import choose_task
from bertfeat.progress import Progress, reporting
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store


def fit_probe(
    store: str | Path | Store,
    label: str,
    config: ProbeConfig | None = None,
    *,
    progress: bool | Progress | None = None,
    **settings: Unpack[ProbeSettings],
) -> FittedProbe:
    """Fit a probe to the features of a store.

    Args:
        store: The store, or its folder.
        label: The column with the labels; rows without a label are left out. At token level, a column of words labels
            the first token of each word.
        config: The settings as one object; or pass them by name in `settings`, not both.
        progress: See `extract`.
        **settings: The fields of `ProbeConfig`, and the head's parameters.

    Returns:
        The fitted probe.

    Raises:
        UserError: A setting, a label column or the data cannot be used.
        StoreError: A part is missing or damaged.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/wnut17_dev.conll", tmp / "features", levels="word", layers="-1")
        >>> probe = fit_probe(store, "label", level="word", head="ridge", class_weight="balanced")
        >>> probe.predict(["I met Obama in London"])["word"].to_list()
        ['I', 'met', 'Obama', 'in', 'London']
    """
    of_sweeps = dict.fromkeys(("features", "limits", "control", "baselines", "mdl"), "it is for sweep_probes")
    config = ProbeConfig.of(config, settings, {**of_sweeps, "hold_out": "pass `dev`"})
    task = ProbeTask.of(store, label, config)
    config = task.config
    if config.seeds > 1 and config.dev is None and task.head.is_random:
        raise UserError(
            f"seeds {config.seeds} and there is no dev split to choose the best of them on; pass dev, or one seed"
        )
    choice = choose_feature(task.store, task.level, config.feature, config.mix)
    with reporting(progress) as reports:
        reports.stage("reading features")
        rows, dev_rows = task.rows(choice.feature, label)
        task.check_labels(rows, dev_rows)
        return fit_rows(task, label, choice, rows, dev_rows, reports)


def fit_rows(
    task: ProbeTask,
    label: str,
    choice: FeatureChoice,
    rows: LabelledRows,
    dev_rows: LabelledRows | None,
    reports: Progress,
) -> FittedProbe:
    """Fit a probe to checked rows; those of dev are of the dev store, or without one of the same store."""
    started = time.perf_counter()
    config, spec = task.config, task.spec(choice.feature)
    train, held = task.read(choice.feature, rows, dev_rows)
    best, trials = task.fit(choice.mix, train, held, reports)
    learned, dev = _used(task.store, config.labels, train), None
    if held is not None:
        labels = config.labels if task.dev is None else config.dev_labels
        scored = _used(task.dev or task.store, labels, held)
        unseen = {name: n for name, n in scored["counts"].items() if name not in learned["counts"]}
        dev = DevRows(**scored, unseen_labels=unseen)
    scores, metric, means = [trial.score for trial in trials if trial.score is not None], None, None
    if scores:
        metric = chosen_metric(scores[0], config.params)
        # A seed with equal predictions has no correlation, which counts as 0 on dev.
        means = {
            name: MeanScore(*mean_and_deviation([score.values.get(name, 0.0) for score in scores]), len(scores))
            for name in dict.fromkeys([metric, *scores[0].values])
        }
    libraries = ["numpy", "scikit-learn", *(["torch"] if best.is_random else [])]
    training = Training(
        **learned,
        spec=spec,
        label=label,
        task=task.task,
        told_by=task.told_by,
        first_tokens=rows.source.of_words,
        limit=config.limit,
        dev=dev,
        seeds=tuple(trial.seed for trial in trials if trial.seed is not None),
        seed=best.get_params().get("seed"),
        n_seeds_asked=config.seeds,
        trials=tuple(
            {"seed": seed, "dev": score and score.values, "fit_report": report} for seed, score, report in trials
        ),
        fit_report=best.fit_report(),
        metric=metric,
        scores=means,
        streamed=train.is_streamed,
        seconds=round(time.perf_counter() - started, 3),
        versions={"bertfeat": __version__, **{name: version(name) for name in libraries}},
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return FittedProbe(best, training, best.head)


def sweep_probes(
    store: str | Path | Store | Sequence[str | Path | Store],
    label: str,
    config: ProbeConfig | None = None,
    *,
    progress: bool | Progress | None = None,
    **settings: Unpack[ProbeSettings],
) -> Sweep:
    """Fit and score one head on each layer of a store and on each combination of layers.

    One extraction of all layers (`layers="all"`) serves the whole sweep. A list of stores of the same documents
    compares models, on documents that are held out. All else, errors among it, is as for `fit_probe`.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/wnut17_dev.conll", tmp / "layers", levels="word", layers="5,6")
        >>> sweep = sweep_probes(store, "label", level="word", head="centroid")
        >>> [row.feature for row in sweep.rows]
        ['layer_05', 'layer_06', 'concat_05_06', 'mean_05_06']
        >>> [path.name for path in sorted(sweep.write(tmp / "sweep").iterdir())]
        ['plot.png', 'plot.svg', 'result.json', 'table.csv']
    """
    require("matplotlib")
    instead = "name the `features` of a sweep"
    config = ProbeConfig.of(config, settings, {"feature": instead, "mix": instead})
    listed = [store] if isinstance(store, str | Path | Store) else list(store)
    if not listed:
        raise UserError("a sweep over no stores; pass one or more")
    parts = [SweptStore.of(ProbeTask.of(one, label, config), label) for one in listed]
    for part in parts[1:]:
        part.check_same(parts[0])
    sizes = _sizes(config, len(np.unique(parts[0].train.documents)))
    fits = [(n, part.task, choice, size) for n, part in enumerate(parts) for choice in part.choices for size in sizes]
    with reporting(progress) as reports:
        return sweep_fits(label, parts, fits, reports)


def sweep_fits(label: str, parts: Sequence[SweptStore], fits: Sequence[Fit], reports: Progress) -> Sweep:
    """Return the scores of fits to the rows of stores."""
    (task, _, train, held, n_classes), config = parts[0], parts[0].task.config
    stores, rows, names = [part.task.store for part in parts], [], list[str]()
    for one in stores:
        names.append(one.path.name if one.path.name not in names else f"{one.path.name} ({len(names) + 1})")
    for place, (n, own, choice, size) in enumerate(fits, start=1):
        part, name = parts[n], names[n] if len(parts) > 1 else None
        title = f"{name}: " * (name is not None) + f"{choice.name} ({place} of {len(fits)}): "
        row = _row(own, choice, part.train.of_documents(size, config.seed), part.held, reports, title)
        rows.append(replace(row, store=name, model=own.store.metadata["model"], limit=size))
    encoded = [*stores, *([] if task.dev is None else [task.dev])]
    seconds = [sum(receipt.seconds.get("encode", 0.0) for receipt in one.receipts()) for one in encoded]
    return Sweep(
        store=", ".join(names),
        plan_hash=", ".join(one.manifest.plan_hash for one in stores),
        model=", ".join(one.metadata["model"] for one in stores),
        level=task.level,
        label=label,
        head=task.head.head,
        task=task.task,
        told_by=task.told_by,
        params=dict(config.params),
        metric=rows[0].metric,
        seeds=tuple(range(config.seed, config.seed + config.seeds)) if task.head.is_random else (),
        seed=config.seed,
        dev=None if task.dev is None else task.dev.path.name,
        held_out=config.hold_out if task.dev is None else None,
        n_train=len(train.rows),
        n_dev=len(held.rows),
        n_classes=n_classes,
        limit=config.limit,
        bertfeat=__version__,
        rows=tuple(rows),
        baselines=baseline_rows(task, train, held, rows[0].metric),
        encoding_s=round(sum(seconds), 3) if all(seconds) else None,
    )


class Trial(NamedTuple):
    """One fit: its seed (None for a head without randomness), its scores on dev, and the report of the head."""

    seed: int | None
    score: ProbeScore | None
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """The settings of a fit or a sweep, with the store and the dev store open, the level, and what is learned."""

    config: ProbeConfig
    store: Store
    dev: Store | None
    level: Level
    task: Task
    told_by: str | None  # what the task was chosen by; None if it was given
    head: type[Probe]

    @classmethod
    def of(cls, store: str | Path | Store, label: str, config: ProbeConfig) -> Self:
        """Open the stores, and check the head with its level, mix and parameters before vectors are read."""
        store = as_store(store)
        level, told_by = store.choose_level(config.level), None
        if config.task == "auto":
            task, told_by = task_of(store, level, label, config.labels)
        else:
            task = Task(config.task)
        name = config.head or DEFAULT_HEADS[task]
        try:
            kind = head_class(name, task)
        except UserError as error:
            raise UserError(f"{error}; {told_by}" if told_by else str(error)) from None
        if kind.is_tagger and level not in WORDS:
            raise UserError(
                f"head {name} tags the words or tokens of a document; pass `level='word'` or `level='token'`"
            )
        if config.mix is not None and not hasattr(kind, "mix"):
            raise UserError(f"head {name} has no scalar mix; `mix` goes with {heads_with('mix')}")
        make_head(name, task, **config.params)
        dev = None if config.dev is None else as_store(config.dev)
        return cls(replace(config, head=name), store, dev, level, task, told_by, kind)

    def probe(self, **params: Any) -> Probe:
        """Return an unfitted probe with further parameters, those that are not None."""
        given = {name: value for name, value in params.items() if value is not None}
        return make_head(self.head.head, self.task, **self.config.params, **given)

    def spec(self, feature: str) -> FeatureSpec:
        """Return a feature, which dev must have too."""
        spec = FeatureSpec.of(self.store, self.level, feature)
        if self.dev is not None:
            spec.find_in(self.dev, mine=f"store {self.store.path.name}")
        return spec

    def rows(self, feature: str, label: str) -> tuple[LabelledRows, LabelledRows | None]:
        """Find the rows with a label, and those of the dev store if there is one."""
        rows = select_rows(self.store, self.level, feature, label, self.config.labels, self.config.limit, self.task)
        warn_of_gaps(self.store, rows, self.head)
        if self.dev is None:
            return rows, None
        return rows, select_rows(self.dev, self.level, feature, label, self.config.dev_labels, task=self.task)

    def check_labels(self, train: LabelledRows, dev: LabelledRows | None) -> int:
        """Return the number of classes of train (0 of numbers), which must repeat and be of the kind of dev's."""
        where = train.source.where
        classes, targets = encode(self.task, train.labels[train.has_vector], what=where)
        if dev is not None and not dev.has_vector.any():
            raise UserError(f"{dev.source.place}: no labelled row of dev has a vector; pass another `dev`, or none")
        if self.task is Task.REGRESS and (targets == targets[0]).all():
            raise UserError(f"{where} holds one number alone, {targets[0].tolist()}; there is nothing to learn")
        if self.task is Task.CLASSIFY:
            if len(classes) == len(targets):
                raise UserError(f"{where} has a different value in each row; a classifier needs classes that repeat")
            if dev is not None:
                require_same_kind(dev.labels, dev.source.where, classes, "train")
        return len(classes)

    def read(self, feature: str, train: LabelledRows, dev: LabelledRows | None) -> tuple[Dataset, Dataset | None]:
        """Read the vectors of train and dev; without a dev store, dev is a part of the store."""
        memory = free_memory() // 2 if self.config.max_memory is None else self.config.max_memory
        data = read_vectors(self.store, feature, train, memory)
        if dev is None:
            return data, None
        # Vectors of train stay in memory; a stream works on less than half of it.
        rest = memory // 2 if data.is_streamed else memory - data.n_bytes
        return data, read_vectors(self.dev or self.store, feature, dev, rest)

    def fit(
        self, mix: int | None, train: Dataset, dev: Dataset | None, reports: Progress, row_title: str | None = None
    ) -> tuple[Probe, list[Trial]]:
        """Fit the head with each seed; return the best probe on dev (the first without dev), and all fits.

        In a sweep, `row_title` begins the lines of progress, and the scores of the first fit have intervals.
        """
        config, is_random = self.config, self.head.is_random
        fits: list[tuple[float, Probe, Trial]] = []
        if config.seeds > 1 and not is_random:
            text = f"`seeds` has no effect: {config.head} gives the same fit each time"
            warnings.warn(BertfeatWarning(text), stacklevel=2)
        for seed in range(config.seed, config.seed + config.seeds) if is_random else [None]:
            count = "" if seed is None else f", seed {seed} ({len(fits) + 1} of {config.seeds})"
            stage = f"{row_title or ''}fitting {config.head}{count}"
            reports.stage(stage)
            probe = self.probe(seed=seed, mix=mix)
            watch = {"on_epoch": partial(_report_epoch, reports, stage)} if is_random else {}
            dev_pair = None if dev is None else (dev.vectors_for(probe), dev.rows.labels)
            probe.fit(train.vectors_for(probe), train.rows.labels, dev=dev_pair, **watch)
            score, value = None, 0.0
            if dev is not None:
                with_intervals = () if row_title is None or fits else DEV_METRICS[probe.task]
                # No row of a sweep shows AUROC, which takes as long as a fit of ridge.
                ranks = row_title is None
                score = score_rows(probe, dev.X, dev.labelled, bootstrap=with_intervals, ranks=ranks)
                value = score.values[chosen_metric(score, config.params)]
            fits.append((value, probe, Trial(seed, score, probe.fit_report())))
        return max(fits, key=itemgetter(0))[1], [trial for _, _, trial in fits]


#: One fit of a sweep: the place of its store, its task, its feature, and the number of its documents (None is all).
Fit: TypeAlias = "tuple[int, ProbeTask, FeatureChoice, int | None]"


class SweptStore(NamedTuple):
    """A store of a sweep: its features, and its rows to learn from and to score on."""

    task: ProbeTask
    choices: Sequence[FeatureChoice]
    train: LabelledRows
    held: LabelledRows
    n_classes: int

    @classmethod
    def of(cls, task: ProbeTask, label: str) -> SweptStore:
        """Find the features and the rows, and check all of them."""
        config = task.config
        choices = choose_features(task.store, task.level, task.head, config.features)
        for choice in choices:
            task.spec(choice.feature)
        check_controls(task, choices)
        train, held = task.rows(choices[0].feature, label)
        if held is None:
            train, held = train.split(config.hold_out, config.seed)
        n_classes = task.check_labels(train, held)
        for size in config.sizes:
            task.check_labels(train.of_documents(size, config.seed), None)
        return cls(task, choices, train, held, n_classes)

    def check_same(self, first: SweptStore) -> None:
        """Raise a UserError unless the rows and labels are those of the first store."""
        for mine, others in ((self.train, first.train), (self.held, first.held)):
            arrays = [(getattr(mine, name), getattr(others, name)) for name in ("rows", "documents", "labels")]
            if mine.level != others.level or not all(np.array_equal(*pair) for pair in arrays):
                both = f"{others.source.place} and {mine.source.place}"
                raise UserError(f"{both} have different rows or labels; extract the same documents for both")


def _sizes(config: ProbeConfig, n_documents: int) -> list[int | None]:
    """Return the numbers of documents to learn from, ascending; one None without a learning curve."""
    if over := [size for size in config.sizes if size and size > n_documents]:
        text = f"`limits` {max(over)} has no effect: there are {counted(n_documents, 'document')} to learn from"
        warnings.warn(BertfeatWarning(text), stacklevel=3)
    return [*sorted({min(size or n_documents, n_documents) for size in config.sizes})] or [None]


def _row(
    task: ProbeTask, choice: FeatureChoice, train: LabelledRows, dev: LabelledRows, reports: Progress, title: str
) -> SweepRow:
    started = time.perf_counter()
    reports.stage(f"{title}reading features")

    def fitted(task: ProbeTask, train: LabelledRows, dev: LabelledRows) -> list[Trial]:
        return task.fit(choice.mix, *task.read(choice.feature, train, dev), reports, title)[1]

    trials = fitted(task, train, dev)
    found = task.store.feature(task.level, choice.feature)
    scores = [trial.score for trial in trials if trial.score is not None]
    metric = chosen_metric(scores[0], task.config.params)
    values = [score.values.get(metric, 0.0) for score in scores]
    mean, deviation = mean_and_deviation(values)
    interval = scores[0].intervals.get(metric)
    controls = measure(task, choice, (train, dev), trials, metric, fitted, reports)
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
        controls=controls,
    )


def task_of(store: Store, level: Level, label: str, labels: LabelTable | None) -> tuple[Task, str | None]:
    """Return the task that the labels of a store say, and what it was chosen by (None for texts)."""
    source = LabelSource.find(store, level, label, labels, str(store.path))
    shards = (source.rows(store.shard(entry.shard)) for entry in store.manifest.shards)
    return choose_task(pl.concat([shard.filter("is_candidate")["label"] for shard in shards]), source.where)


def chosen_metric(score: ProbeScore, params: Mapping[str, Any]) -> str:
    """Return the score that compares fits: the head's own metric if it is one of them, else the main score."""
    metric = params.get("metric", score.metric)
    return metric if metric in score.values else score.metric


def _report_epoch(reports: Progress, stage: str, report: Mapping[str, Any]) -> None:
    line = f"{stage}: epoch {report['epoch']} of up to {report['max_epochs']}, loss {report['train_loss']:.4f}"
    reports.stage(line + (f", {report['metric']} {report['dev_score']:.4f}" if "metric" in report else ""))


def _used(store: Store, labels: LabelTable | None, data: Dataset) -> dict[str, Any]:
    """Return the fields of `UsedRows`."""
    used, lengths = data.rows, data.rows.lengths
    # Numbers are not counted.
    of_rows = [] if used.labels.dtype.kind == "f" else used.labels.tolist()
    counts = Counter(chain.from_iterable(of_rows) if used.labels.dtype.kind == "O" else of_rows)
    return {
        "store": store.path.name,
        "plan_hash": store.manifest.plan_hash,
        "labels": "a frame" if isinstance(labels, pl.DataFrame) else labels and Path(labels).name,
        "n_rows": len(used.rows),
        "n_documents": len(used.rows if lengths is None else lengths),
        "n_without_vector": len(data.labelled.rows) - len(used.rows),
        "n_without_label": data.labelled.n_without_label,
        "n_classes": len(counts),
        "counts": {str(name): count for name, count in sorted(counts.items())},
    }
