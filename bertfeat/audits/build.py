"""Audit of one or two stores: probable label errors, leakage and duplicates, outliers, classes, and shift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bertfeat._version import __version__
from bertfeat.audits.duplicates import find_duplicates, find_neighbors, find_outliers
from bertfeat.audits.label_errors import LabelJudge
from bertfeat.audits.result import Audit
from bertfeat.audits.shift import find_shift
from bertfeat.audits.side import Side
from bertfeat.choices import Level, Task
from bertfeat.errors import UserError, require
from bertfeat.heads.base import require_same_kind
from bertfeat.probes.config import LabelTable
from bertfeat.probes.fitting import task_of
from bertfeat.probes.rows import select_rows
from bertfeat.progress import Progress, reporting
from bertfeat.store.provenance import FeatureSpec
from bertfeat.store.reader import Store, as_store


def audit(
    train: str | Path | Store,
    test: str | Path | Store | None = None,
    *,
    label: str | None = None,
    level: str | None = None,
    feature: str | int | None = None,
    labels: LabelTable | None = None,
    test_labels: LabelTable | None = None,
    seed: int = 0,
    progress: bool | Progress | None = None,
) -> Audit:
    """Look for what is wrong with labels, splits and texts, by stored features and without a run of the model.

    Texts of all documents are held in memory, and at word or span level a vector of each; other vectors are streamed
    if they do not fit.

    Args:
        train: A store, or its folder, at sentence, word or span level.
        test: Another store of the same model and settings; None to look at one alone.
        label: The column with the labels, one class per row; None for no labels.
        level: sentence, word or span; None for the only one that is stored.
        feature: The feature, or the number of a layer; None for the only one that is stored, or `concat_last4`.
        labels: A file or frame with the labels of train; see `ProbeConfig`.
        test_labels: The same for test.
        seed: The seed of folds, samples and indexes.
        progress: See `extract`.

    Returns:
        The findings, as frames; `write` makes a page and a Parquet file of each.

    Raises:
        UserError: The stores have other features, the labels are not classes, or a setting cannot be used.
        StoreError: A part is missing or damaged.

    Examples:
        >>> from bertfeat import extract
        >>> data = {"text": ["a warm film", "a dull film", "so warm", "so dull"] * 6, "label": ["+", "-"] * 12}
        >>> store = extract(data, tmp / "features", levels="sentence", layers="-1", keep_columns="label")
        >>> audit(store, label="label").duplicates.table["group"].n_unique()
        4
    """
    require("sklearn")
    opened = [as_store(train), *([] if test is None else [as_store(test)])]
    where = opened[0].choose_level(level)
    if where is Level.TOKEN:
        raise UserError("level token: an audit is of texts, words or spans; pass `level='sentence'`, 'word' or 'span'")
    for store in opened:
        if where is Level.SPAN and Level.SENTENCE not in store.levels and "chunk" not in store.metadata:
            raise UserError(f"{store.path}: an audit needs the texts around spans; extract the sentence level too")
    chosen = opened[0].choose_feature(where, feature)
    spec = FeatureSpec.of(opened[0], where, chosen)
    sides = []
    for name, store, table in zip(("train", "test"), opened, (labels, test_labels), strict=False):
        spec.find_in(store, mine=f"store {opened[0].path.name}")
        rows = None
        if label is not None:
            task, told_by = task_of(store, where, label, table)
            if task is not Task.CLASSIFY:
                raise UserError(f"an audit of labels needs one class per row; {told_by}; leave `label` out")
            rows = select_rows(store, where, chosen, label, table).with_vector
        sides.append(Side(name, store, where, chosen, rows))
    if len(sides) == 2 and sides[0].rows is not None and sides[1].rows is not None:
        require_same_kind(sides[1].rows.labels, "test", np.unique(sides[0].rows.labels), "train")
    with reporting(progress) as reports:
        return _findings(sides, label, seed, reports)


def _findings(sides: list[Side], label: str | None, seed: int, reports: Progress) -> Audit:
    """Return what is found in stores that were checked."""
    found: dict[str, Any] = {}
    if label is not None:
        judge = LabelJudge(sides[0], seed, reports)
        judged = [judge.of_train(), *(judge.of_test(side) for side in sides[1:])]
        tables = [judge.table(side, rows) for side, rows in zip(sides, judged, strict=True)]
        found = {
            "classes": judge.class_table(judged[0]),
            "confusions": judge.confusions(judged[0]),
            "label_errors": pl.concat(tables).sort("probability", maintain_order=True),
            "n_not_judged": sum(rows["own"].null_count() for rows in judged),
        }
    reports.stage("reading texts")
    documents = pl.concat(
        [side.documents.with_columns(pl.lit(side.name).alias("side")) for side in sides], how="diagonal_relaxed"
    )
    if "label" not in documents.columns:
        documents = documents.with_columns(pl.lit(None, pl.String).alias("label"))
    reports.stage("finding duplicates")
    neighbors = find_neighbors(sides, seed)
    duplicates = find_duplicates(documents, neighbors, seed)
    reports.stage("telling train and test apart")
    return Audit(
        **found,
        stores=tuple(side.store.path.name for side in sides),
        model=sides[0].store.metadata["model"],
        level=sides[0].level,
        feature=sides[0].feature,
        label=label,
        seed=seed,
        bertfeat=__version__,
        n_documents=tuple(side.documents.height for side in sides),
        n_labelled=tuple(0 if side.rows is None else len(side.rows.rows) for side in sides),
        duplicates=duplicates,
        outliers=find_outliers(documents, neighbors),
        shift=find_shift(sides, documents, duplicates.table, seed) if len(sides) == 2 else None,
    )
