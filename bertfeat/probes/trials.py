"""Fits of one head, seed by seed: which is kept, and what is noted of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from bertfeat.config import Level
from bertfeat.heads.base import Labels, Probe, codes_of
from bertfeat.heads.bootstrap import mean_and_deviation
from bertfeat.heads.registry import head_class, make_head
from bertfeat.heads.scores import METRICS
from bertfeat.probes.features import Choice
from bertfeat.probes.learningrows import Dataset
from bertfeat.probes.scoring import ProbeScore, score_labelled

#: Takes a line on what is being done, and on each epoch of a neural head.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One fit: its seed (None where chance has no part), its scores on dev, and what the head reports."""

    seed: int | None
    score: ProbeScore | None
    report: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        scores = self.score.scores if self.score else None
        entity_f1 = {} if scores is None or scores.entities is None else {"entity_f1": scores.entities.f1}
        named = {} if scores is None else {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1, **entity_f1}
        return {"seed": self.seed, "dev": named or None, "fit_report": dict(self.report)}


def fit_seeds(
    head: str,
    choice: Choice,
    level: Level,
    train: Dataset,
    dev: Dataset | None,
    *,
    seeds: int,
    seed: int,
    params: Mapping[str, Any],
    say: Say,
    bootstrap: bool = False,
) -> tuple[Probe, list[Trial]]:
    """Fit a head with each seed; return the probe that is best on dev (the first without dev), and all trials.

    A head that chance has no part in is fitted once. With `bootstrap` the first trial's scores have intervals.
    """
    cls = head_class(head)
    numbers: list[int | None] = list(range(seed, seed + seeds)) if cls.is_random else [None]
    best: tuple[Probe, ProbeScore | None] | None = None
    trials = []
    for place, number in enumerate(numbers, start=1):
        title = f"fitting {head}" + (f", seed {number} ({place} of {len(numbers)})" if number is not None else "")
        say(title)
        extra = {} if number is None else {"seed": number}
        if choice.mix is not None:
            extra["mix"] = choice.mix
        probe = _fit(make_head(head, **params, **extra), train, dev, title, say)
        score = (
            None
            if dev is None
            else score_labelled(probe, dev.X, dev.labelled, level, bootstrap=bootstrap and place == 1)
        )
        trials.append(Trial(number, score, probe.fit_report()))
        if best is None or (score is not None and _value(score, params) > _value(best[1], params)):
            best = (probe, score)
    assert best is not None
    return best[0], trials


def _fit(probe: Probe, train: Dataset, dev: Dataset | None, title: str, say: Say) -> Probe:
    held = None if dev is None else (dev.sequences if probe.is_tagger else dev.X, dev.labels)
    settings: dict[str, Any] = {"dev": held}
    if "on_epoch" in inspect.signature(probe.fit).parameters:
        settings["on_epoch"] = lambda report: say(_epoch_line(title, report))
    probe.fit(train.sequences if probe.is_tagger else train.X, train.labels, **settings)
    return probe


def _epoch_line(title: str, report: Mapping[str, Any]) -> str:
    line = f"{title}: epoch {report['epoch']} of up to {report['max_epochs']}, loss {report['train_loss']:.4f}"
    return line + (f", {report['metric']} {report['dev_score']:.4f}" if "metric" in report else "")


def chosen_metric(score: ProbeScore, params: Mapping[str, Any]) -> str:
    """Return the score that fits are compared by: the head's own metric where it is one, else that of the labels."""
    metric = params.get("metric")
    return metric if metric in METRICS and (metric != "entity_f1" or score.scores.entities) else score.metric


def _value(score: ProbeScore | None, params: Mapping[str, Any]) -> float:
    assert score is not None
    return score.scores.value(chosen_metric(score, params))


def count_rows(data: Dataset) -> dict[str, Any]:
    """Return how many rows there are, of which class, and how many were left out."""
    assert data.labels is not None
    classes, counts = np.unique(data.labels, return_counts=True)
    return {
        "n_rows": len(data.rows),
        "n_documents": len(data.rows if data.lengths is None else data.lengths),
        "n_without_vector": data.n_without_vector,
        "n_without_label": data.n_without_label,
        "n_classes": len(classes),
        "counts": {str(name): int(count) for name, count in zip(classes.tolist(), counts, strict=True)},
    }


def unseen_labels(data: Dataset, classes: Labels) -> dict[str, int]:
    """Return the labels of rows that are none of the classes, and how often each stands."""
    assert data.labels is not None
    names, counts = np.unique(data.labels[codes_of(data.labels, classes) < 0], return_counts=True)
    return {str(name): int(count) for name, count in zip(names.tolist(), counts, strict=True)}


def outcome_of(best: Probe, trials: list[Trial], seeds: int) -> dict[str, Any]:
    """Return what the fits came to: the scores of each on dev, their mean and deviation, and which one was kept."""
    report = best.fit_report()
    outcome: dict[str, Any] = {
        "seeds": [trial.seed for trial in trials if trial.seed is not None],
        "seed": best.get_params().get("seed"),
        "n_seeds_asked": seeds,
        "trials": [trial.to_dict() for trial in trials],
        "fit_report": report,
        "scores": None,
    }
    scores = [trial.score for trial in trials if trial.score is not None]
    if scores:
        metric = chosen_metric(scores[0], best.get_params())
        names = dict.fromkeys([metric, "accuracy", "macro_f1"])
        summary = {}
        for name in names:
            values = [score.scores.value(name) for score in scores]
            mean, deviation = mean_and_deviation(values)
            summary[name] = {"mean": mean, "deviation": deviation, "n": len(values)}
        outcome |= {"metric": metric, "scores": summary}
    return outcome


def versions_of(probe: Probe) -> dict[str, str]:
    """Return the versions of the libraries that fitted a probe."""
    libraries = ["numpy", "scikit-learn", *(["torch"] if probe.is_random else [])]
    return {name: version(name) for name in libraries}
