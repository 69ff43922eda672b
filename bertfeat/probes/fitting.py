"""Fitting: from a labelled store to a fitted probe, seed by seed."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import polars as pl

from bertfeat._version import __version__
from bertfeat.choices import Level
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, Probe, codes_of, encode_labels, require_same_kind
from bertfeat.heads.bootstrap import mean_and_deviation
from bertfeat.heads.registry import head_class, heads_with_mix, make_head
from bertfeat.heads.scores import METRICS
from bertfeat.memory import free_memory
from bertfeat.probes.config import LabelTable, ProbeConfig, ProbeSettings
from bertfeat.probes.features import FeatureChoice, choose_feature
from bertfeat.probes.fitted import FittedProbe, as_store
from bertfeat.probes.learningrows import Dataset, LabelledRows, read_vectors, select_rows
from bertfeat.probes.probedescription import DevRows, MeanScore, Training
from bertfeat.probes.scoring import ProbeScore, score_labelled
from bertfeat.progress import Progress, reporting
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store

#: Takes a line of progress, also after each epoch of a neural head.
Say = Callable[[str], None]


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
    started = time.perf_counter()
    config = ProbeConfig.of(config, settings, {"features": "it is for sweep_probes", "hold_out": "pass `dev`"})
    task = ProbeTask.of(store, config)
    if config.seeds > 1 and config.dev is None and head_class(config.head).is_random:
        raise UserError(
            f"seeds {config.seeds} and there is no dev split to choose the best of them on; pass dev, or one seed"
        )
    choice = choose_feature(task.store, task.level, config.feature, config.mix)
    spec = task.spec(choice)
    with reporting(progress) as reports:
        reports.stage("reading features")
        rows, dev_rows = task.rows(choice.feature, label)
        classes = task.classes(rows, dev_rows)
        train, held = task.read(choice.feature, rows, dev_rows)
        best, trials = task.fit(choice, train, held, reports.stage)
    dev = None
    if task.dev is not None and held is not None:
        dev = DevRows(**_used(task.dev, config.dev_labels, held), unseen_labels=_unseen_labels(held, classes))
    training = Training(
        **_used(task.store, config.labels, train),
        spec=spec,
        label=label,
        first_tokens=rows.source.of_words,
        limit=config.limit,
        dev=dev,
        n_seeds_asked=config.seeds,
        **_outcome(best, trials),
        streamed=train.is_streamed,
        seconds=round(time.perf_counter() - started, 3),
        versions={"bertfeat": __version__, **_versions(best)},
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return FittedProbe(best, training, config.head)


@dataclass(frozen=True, slots=True)
class Trial:
    """One fit: its seed (None for a head without randomness), its scores on dev, and the report of the head."""

    seed: int | None
    score: ProbeScore | None
    report: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as JSON values."""
        scores = self.score.scores if self.score else None
        names = [] if scores is None else ["accuracy", "macro_f1", *(["entity_f1"] if scores.entities else [])]
        dev = {name: scores.value(name) for name in names} if scores else None
        return {"seed": self.seed, "dev": dev, "fit_report": dict(self.report)}


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """The settings of a fit or a sweep, with the store and the dev store open, and the level."""

    config: ProbeConfig
    store: Store
    dev: Store | None
    level: Level

    @classmethod
    def of(cls, store: str | Path | Store, config: ProbeConfig) -> Self:
        """Open the stores, and check the head with its level, mix and parameters before anything is read."""
        store = as_store(store)
        level, kind = store.choose_level(config.level), head_class(config.head)
        if kind.is_tagger and level is Level.SENTENCE:
            raise UserError(
                f"head {config.head} tags the words or tokens of a document; pass `level='word'` or `level='token'`"
            )
        if config.mix is not None and not kind.has_mix:
            raise UserError(f"head {config.head} has no scalar mix; `mix` goes with {heads_with_mix()}")
        make_head(config.head, **config.params)
        return cls(config, store, None if config.dev is None else as_store(config.dev), level)

    def spec(self, choice: FeatureChoice) -> FeatureSpec:
        """Return a feature, which dev must have too."""
        spec = FeatureSpec.of(self.store, self.level, choice.feature)
        if self.dev is not None:
            spec.find_in(self.dev, mine=f"store {self.store.path.name}")
        return spec

    def rows(self, feature: str, label: str) -> tuple[LabelledRows, LabelledRows | None]:
        """Find the rows with a label, and those of the dev store if there is one."""
        config, dev = self.config, None
        rows = select_rows(self.store, self.level, feature, label, config.labels, config.limit)
        if self.dev is not None:
            dev = select_rows(self.dev, self.level, feature, label, config.dev_labels)
        return rows, dev

    def classes(self, train: LabelledRows, dev: LabelledRows | None) -> Labels:
        """Return the classes of train, checked to be two or more, to repeat, and to be of the kind of dev's labels."""
        where = train.source.where
        classes, codes = encode_labels(train.labels[train.has_vector], what=where)
        if len(classes) == len(codes):
            raise UserError(f"{where} has a different value in each row; a classifier needs classes that repeat")
        if dev is not None:
            if not dev.has_vector.any():
                without = f"{dev.n_without_label} without a label, {len(dev.rows)} without a vector"
                raise UserError(
                    f"{dev.source.place}: the dev split is empty: it has {dev.n_total} rows at level "
                    f"{self.level}, {without}; pass one with labelled rows, or none"
                )
            require_same_kind(dev.labels, dev.source.where, classes, "train")
        return classes

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
        self, choice: FeatureChoice, train: Dataset, dev: Dataset | None, say: Say, *, bootstrap: bool = False
    ) -> tuple[Probe, list[Trial]]:
        """Fit the head with each seed; return the best probe on dev (the first without dev), and all fits.

        A head without randomness is fitted once. With `bootstrap`, the scores of the first fit have intervals.
        """
        config, trials = self.config, list[Trial]()
        best: tuple[float, Probe] | None = None
        is_random = head_class(config.head).is_random
        for seed in range(config.seed, config.seed + config.seeds) if is_random else [None]:
            count = "" if seed is None else f", seed {seed} ({len(trials) + 1} of {config.seeds})"
            title = f"fitting {config.head}{count}"
            say(title)
            extra = {name: value for name, value in (("seed", seed), ("mix", choice.mix)) if value is not None}
            probe = _fit(make_head(config.head, **config.params, **extra), train, dev, title, say)
            score, value = None, 0.0
            if dev is not None:
                score = score_labelled(probe, dev.X, dev.labelled, bootstrap=bootstrap and not trials)
                value = score.scores.value(chosen_metric(score, config.params))
            trials.append(Trial(seed, score, probe.fit_report()))
            if best is None or value > best[0]:
                best = (value, probe)
        assert best is not None
        return best[1], trials


def chosen_metric(score: ProbeScore, params: Mapping[str, Any]) -> str:
    """Return the score that compares fits: the head's own metric if it is one of them, else the main score."""
    metric = params.get("metric")
    return metric if metric in METRICS and (metric != "entity_f1" or score.scores.entities) else score.metric


def _fit(probe: Probe, train: Dataset, dev: Dataset | None, title: str, say: Say) -> Probe:
    settings: dict[str, Any] = {"dev": None if dev is None else (_vectors(probe, dev), dev.rows.labels)}
    if "on_epoch" in inspect.signature(probe.fit).parameters:
        settings["on_epoch"] = lambda report: say(_epoch_line(title, report))
    probe.fit(_vectors(probe, train), train.rows.labels, **settings)
    return probe


def _vectors(probe: Probe, data: Dataset) -> Any:
    return data.sequences if probe.is_tagger else data.X


def _epoch_line(title: str, report: Mapping[str, Any]) -> str:
    line = f"{title}: epoch {report['epoch']} of up to {report['max_epochs']}, loss {report['train_loss']:.4f}"
    return line + (f", {report['metric']} {report['dev_score']:.4f}" if "metric" in report else "")


def _used(store: Store, labels: LabelTable | None, data: Dataset) -> dict[str, Any]:
    """Return the fields of `UsedRows`."""
    name = "a frame" if isinstance(labels, pl.DataFrame) else None if labels is None else Path(labels).name
    used, lengths = data.rows, data.rows.lengths
    classes, counts = np.unique(used.labels, return_counts=True)
    return {
        "store": store.path.name,
        "plan_hash": store.manifest.plan_hash,
        "labels": name,
        "n_rows": len(used.rows),
        "n_documents": len(used.rows if lengths is None else lengths),
        "n_without_vector": len(data.labelled.rows) - len(used.rows),
        "n_without_label": data.labelled.n_without_label,
        "n_classes": len(classes),
        "counts": _counted(classes, counts),
    }


def _unseen_labels(data: Dataset, classes: Labels) -> dict[str, int]:
    """Return the number of rows of each label that is not among the classes."""
    labels = data.rows.labels
    return _counted(*np.unique(labels[codes_of(labels, classes) < 0], return_counts=True))


def _counted(names: Labels, counts: Any) -> dict[str, int]:
    return {str(name): int(count) for name, count in zip(names.tolist(), counts, strict=True)}


def _outcome(best: Probe, trials: list[Trial]) -> dict[str, Any]:
    """Return the scores of each fit on dev, their mean and deviation, and the seed and report of the best fit."""
    metric, means = None, None
    if scores := [trial.score for trial in trials if trial.score is not None]:
        metric = chosen_metric(scores[0], best.get_params())
        means = {
            name: MeanScore(*mean_and_deviation([score.scores.value(name) for score in scores]), len(scores))
            for name in dict.fromkeys([metric, "accuracy", "macro_f1"])
        }
    return {
        "seeds": tuple(trial.seed for trial in trials if trial.seed is not None),
        "seed": best.get_params().get("seed"),
        "trials": tuple(trial.to_dict() for trial in trials),
        "fit_report": best.fit_report(),
        "metric": metric,
        "scores": means,
    }


def _versions(probe: Probe) -> dict[str, str]:
    """Return the versions of the libraries that fitted a probe."""
    libraries = ["numpy", "scikit-learn", *(["torch"] if probe.is_random else [])]
    return {name: version(name) for name in libraries}
