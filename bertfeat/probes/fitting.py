"""Fitting: from a labelled store to a fitted probe."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl

from bertfeat._version import __version__
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, Probe, codes_of
from bertfeat.heads.bootstrap import mean_and_deviation
from bertfeat.heads.registry import HeadSettings, head_class
from bertfeat.memory import free_memory
from bertfeat.probes.features import choose_feature
from bertfeat.probes.fitted import FittedProbe, as_store
from bertfeat.probes.labels import LabelTable
from bertfeat.probes.learningrows import Dataset, select_rows
from bertfeat.probes.probedescription import DevRows, MeanScore, Training
from bertfeat.probes.trials import FitRequest, Trial, chosen_metric
from bertfeat.progress import Progress, reporting
from bertfeat.store.reader import Store


def fit_probe(
    store: str | Path | Store,
    label: str,
    *,
    level: str | None = None,
    feature: str | int | None = None,
    head: str = "logreg",
    dev: str | Path | Store | None = None,
    mix: str | Sequence[int] | None = None,
    seeds: int = 1,
    seed: int = 0,
    labels: LabelTable | None = None,
    dev_labels: LabelTable | None = None,
    max_memory: int | None = None,
    limit: int | None = None,
    progress: bool | Progress | None = None,
    **params: Unpack[HeadSettings],
) -> FittedProbe:
    """Fit a probe to the features of a store.

    Args:
        store: The store, or its folder.
        label: The column with the labels; rows without a label are left out. At token level, a column of words labels
            the first token of each word.
        level: token, word or sentence; by default the only one that is stored.
        feature: The feature, or the number of a layer (-1 is the last one); None for the only one that is stored, or
            `concat_last4`.
        head: logreg, svm, ridge, centroid, knn, mlp; at word and token level also the taggers linear and bilstm.
        dev: A store to choose settings and seeds by, extracted like the first one.
        mix: Layers that a neural head weights in a scalar mix (`9..12`, or a list), instead of a feature.
        seeds: The number of seeds of a random head. The best fit on dev is kept; more than one seed needs a dev split.
        seed: The first seed.
        labels: A file (.csv, .tsv, .jsonl, .parquet) or frame with the labels, instead of a column of the store. Its
            columns are `doc_id`, at word and token level `word_index` or `token_index`, and the label's.
        dev_labels: The same for dev.
        max_memory: Bytes that vectors may take; if they do not fit, they are streamed. None is half of the free memory.
        limit: The number of documents to learn from, the first ones of the store; None is all.
        progress: See `extract`.
        **params: The head's parameters.

    Returns:
        The fitted probe.

    Raises:
        UserError: A setting, a label column or the data cannot be used.
        StoreError: A part is missing or damaged.

    Examples:
        >>> from bertfeat import extract
        >>> store = extract("examples/data/wnut17_dev.conll", tmp / "features", levels="word", layers="-1")
        >>> probe = fit_probe(store, "label", level="word", head="ridge", class_weight="balanced")
        >>> probe.predict_texts(["I met Obama in London"])["word"].to_list()
        ['I', 'met', 'Obama', 'in', 'London']
    """
    started = time.perf_counter()
    opened, opened_dev = as_store(store), None if dev is None else as_store(dev)
    where = opened.choose_level(level)
    memory = free_memory() // 2 if max_memory is None else max_memory
    request = FitRequest(opened, opened_dev, where, head, params, seeds, seed, memory)
    request.check(mix=mix, dev_labels=dev_labels)
    if seeds > 1 and dev is None and head_class(head).is_random:
        raise UserError(f"seeds {seeds} and there is no dev split to choose the best of them on; pass dev, or one seed")
    choice = choose_feature(opened, where, feature, mix)
    spec = request.spec(choice)
    with reporting(progress) as reports:
        reports.stage("reading features")
        rows, dev_rows = select_rows(opened, where, choice.feature, label, labels=labels, limit=limit), None
        if opened_dev is not None:
            dev_rows = select_rows(opened_dev, where, choice.feature, label, labels=dev_labels)
        classes = request.classes(rows, dev_rows)
        train, held = request.read(choice.feature, rows, dev_rows)
        best, trials = request.fit(choice, train, held, reports.stage)
    used_dev = None
    if opened_dev is not None and held is not None:
        used_dev = DevRows(**_used(opened_dev, dev_labels, held), unseen_labels=_unseen_labels(held, classes))
    training = Training(
        **_used(opened, labels, train),
        limit=limit,
        dev=used_dev,
        **_outcome(best, trials, seeds),
        streamed=train.is_streamed,
        seconds=round(time.perf_counter() - started, 3),
        versions={"bertfeat": __version__, **_versions(best)},
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    return FittedProbe(best, spec, label, rows.first_tokens, training, head)


def _used(store: Store, labels: LabelTable | None, data: Dataset) -> dict[str, Any]:
    name = "a frame" if isinstance(labels, pl.DataFrame) else None if labels is None else Path(labels).name
    return {"store": store.path.name, "plan_hash": store.manifest.plan_hash, "labels": name, **data.summary()}


def _unseen_labels(data: Dataset, classes: Labels) -> dict[str, int]:
    """Return the number of rows of each label that is not among the classes."""
    names, counts = np.unique(data.labels[codes_of(data.labels, classes) < 0], return_counts=True)
    return {str(name): int(count) for name, count in zip(names.tolist(), counts, strict=True)}


def _outcome(best: Probe, trials: list[Trial], seeds: int) -> dict[str, Any]:
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
        "n_seeds_asked": seeds,
        "trials": tuple(trial.to_dict() for trial in trials),
        "fit_report": best.fit_report(),
        "metric": metric,
        "scores": means,
    }


def _versions(probe: Probe) -> dict[str, str]:
    """Return the versions of the libraries that fitted a probe."""
    libraries = ["numpy", "scikit-learn", *(["torch"] if probe.is_random else [])]
    return {name: version(name) for name in libraries}
