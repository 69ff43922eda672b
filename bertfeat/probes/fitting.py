"""From a labelled store to a fitted probe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from bertfeat._version import __version__
from bertfeat.config import Level
from bertfeat.errors import UserError
from bertfeat.heads.base import Labels, encode_labels
from bertfeat.heads.registry import head_class, heads_with_mix, make_head
from bertfeat.memory import free_memory
from bertfeat.probes.features import choose_feature
from bertfeat.probes.fitted import FittedProbe, as_store
from bertfeat.probes.labels import LabelTable, label_source, table_name
from bertfeat.probes.learningrows import Dataset, LabelledRows, read_dataset
from bertfeat.probes.trials import count_rows, fit_seeds, outcome_of, unseen_labels, versions_of
from bertfeat.progress import Progress, reporting
from bertfeat.settings import HeadSettings
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store


def fit_probe(
    store: str | Path | Store,
    label: str,
    *,
    level: str = "sentence",
    feature: str | None = None,
    head: str = "logreg",
    dev: str | Path | Store | None = None,
    mix: str | Sequence[int] | None = None,
    seeds: int = 1,
    seed: int = 0,
    labels: LabelTable | None = None,
    dev_labels: LabelTable | None = None,
    max_memory: int | None = None,
    limit: int | None = None,
    progress: bool | Progress = False,
    **params: Unpack[HeadSettings],
) -> FittedProbe:
    """Fit a probe to the features of a store.

    Args:
        store: The store, or its folder.
        label: The column with the labels; rows where it is null or empty are left out. At token level, a column of
            words labels the first token of each word.
        level: token, word or sentence.
        feature: The feature; None for the only one that is stored, or `concat_last4`.
        head: logreg, svm, ridge, centroid, knn, mlp; at word and token level also the taggers linear and bilstm.
        dev: A store to choose settings and seeds by, extracted like the first one.
        mix: Layers that a neural head weighs in a scalar mix (`9..12`, or a list), in place of a feature.
        seeds: How many seeds a random head is fitted with; the one that is best on dev is kept, so that more than one
            need a dev split.
        seed: The first of them.
        labels: A file (.csv, .tsv, .jsonl, .parquet) or frame with the labels, in place of a column of the store: its
            columns are `doc_id`, at word and token level `word_index` or `token_index`, and the label's.
        dev_labels: The same for dev.
        max_memory: Bytes that vectors may take; those that do not fit are streamed. None for half of what is free.
        limit: Learn from the first documents of the store alone.
        progress: See `bertfeat.progress.Progress`.
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
    where = opened.schema(level).level
    check_request(head, where, mix=mix, seeds=seeds, params=params, dev=opened_dev, dev_labels=dev_labels)
    if seeds > 1 and opened_dev is None and head_class(head).is_random:
        raise UserError(f"seeds {seeds} and there is no dev split to choose the best of them on; pass dev, or one seed")
    choice = choose_feature(opened, where, feature, mix)
    spec = FeatureSpec.of(opened, where, choice.feature)
    if opened_dev is not None:
        spec.find_in(opened_dev, mine=f"store {opened.path.name}")
    with reporting(progress) as reports:
        reports.stage("reading features")
        memory = free_memory() // 2 if max_memory is None else max_memory
        train = read_dataset(opened, where, choice.feature, label, labels=labels, max_memory=memory, limit=limit)
        assert train.labels is not None
        classes, _ = encode_labels(train.labels, what=label_source(opened, label, labels))
        held = None
        if opened_dev is not None:
            # What train has taken is gone; a streamed one works on less than half.
            rest = memory // 2 if train.is_streamed else memory - train.n_bytes
            held = read_dataset(opened_dev, where, choice.feature, label, labels=dev_labels, max_memory=rest)
            check_held(held.labelled, opened_dev, where, classes)
        best, trials = fit_seeds(
            head, choice, where, train, held, seeds=seeds, seed=seed, params=params, say=reports.stage
        )
    training = {
        "store": opened.path.name,
        "plan_hash": opened.manifest["plan_hash"],
        "labels": None if labels is None else table_name(labels),
        "limit": limit,
        **count_rows(train),
        "dev": None if opened_dev is None or held is None else _dev(opened_dev, held, classes, dev_labels),
        **outcome_of(best, trials, seeds),
        "streamed": train.is_streamed,
        "seconds": round(time.perf_counter() - started, 3),
        "versions": {"bertfeat": __version__, **versions_of(best)},
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return FittedProbe(best, spec, label, train.labelled.first_tokens, training, head)


def check_request(
    head: str,
    level: Level,
    *,
    mix: str | Sequence[int] | None,
    seeds: int,
    params: Mapping[str, Any],
    dev: Store | None,
    dev_labels: LabelTable | None,
) -> None:
    """Check, before anything is read, that a head works at a level and has the parameters, and that labels have a dev.

    Raises:
        UserError: One of these does not hold.
    """
    cls = head_class(head)
    if seeds < 1:
        raise UserError(f"seeds {seeds} is below 1")
    if cls.is_tagger and level is Level.SENTENCE:
        raise UserError(f"head {head} tags the words or tokens of a document; pass --level word or --level token")
    if mix is not None and not cls.has_mix:
        raise UserError(f"head {head} has no scalar mix; --mix goes with {heads_with_mix()}")
    make_head(head, **params)
    if dev is None and dev_labels is not None:
        raise UserError("dev labels without a dev store; pass --dev too")


def check_held(held: LabelledRows, store: Store, level: Level, classes: Labels) -> None:
    """Check that a dev split has rows to score, with labels that are text where the classes are, else numbers.

    Raises:
        UserError: No row has both a label and a vector, or the labels are of the other kind.
    """
    if not held.has_vector.any():
        without = f"{held.n_without_label} without a label, {len(held.rows)} without a vector"
        raise UserError(
            f"{store.path}: the dev split is empty: it has {held.n_total} rows at level {level}, {without}; "
            "pass one with labelled rows, or none"
        )
    assert held.labels is not None
    if (held.labels.dtype.kind == "U") != (classes.dtype.kind == "U"):
        mine, theirs = classes.tolist()[0], held.labels.tolist()[0]
        raise UserError(f"{store.path}: labels on dev are such as {theirs!r}, on train such as {mine!r}; use one kind")


def _dev(store: Store, data: Dataset, classes: Labels, labels: LabelTable | None) -> dict[str, Any]:
    return {
        "store": store.path.name,
        "plan_hash": store.manifest["plan_hash"],
        "labels": None if labels is None else table_name(labels),
        **count_rows(data),
        "unseen_labels": unseen_labels(data, classes),
    }
