"""Record of a probe and its training, read without loading the head: what is saved, printed as JSON, and inspected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bertfeat.choices import Task
from bertfeat.durable.files import os_errors
from bertfeat.durable.publication import standing
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.heads.folder import DOCUMENT, ProbeDocument, read_document
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRows:
    """Rows that a probe learned from or was scored on, by class in `counts`, and the rows that were left out."""

    store: str  # its name
    plan_hash: str
    labels: str | None  # the file with the labels; None for a column of the store
    n_rows: int
    n_documents: int
    n_without_vector: int
    n_without_label: int
    n_classes: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevRows(UsedRows):
    """Rows that a probe was scored on; `unseen_labels` has the rows of each label that training has not seen."""

    unseen_labels: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MeanScore:
    """The mean of a score over `n` seeds, and its deviation (None for one seed)."""

    mean: float
    deviation: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(UsedRows):
    """A record of a probe and its training; beside it are saved the head, its parameters and the classes."""

    spec: FeatureSpec
    label: str
    first_tokens: bool  # it learned the labels of words from their first tokens
    limit: int | None
    dev: DevRows | None
    seeds: tuple[int, ...]  # empty for a head without randomness
    seed: int | None  # the one that was kept, by its score `metric` on dev
    n_seeds_asked: int
    trials: tuple[Mapping[str, Any], ...]  # of each fit its `seed`, its scores on dev and its `fit_report`
    fit_report: Mapping[str, Any]
    metric: str | None
    scores: Mapping[str, MeanScore] | None  # the means on dev
    streamed: bool
    seconds: float
    versions: Mapping[str, str]
    created_at: str  # ISO 8601, UTC
    task: Task = Task.CLASSIFY
    told_by: str | None = None  # what the task was chosen by; None if it was given, and for texts

    def to_dict(self, head: str, params: Mapping[str, Any], classes: Sequence[Any]) -> dict[str, Any]:
        """Return the record, with the head, its parameters and the classes, as JSON values."""
        return {**to_values({"head": head, "params": params, "classes": classes}), **to_values(self)}


@os_errors(UserError)
def describe_probe(folder: str | Path) -> tuple[ProbeDocument, Training]:
    """Return what `probe.json` of a saved probe says; its weights are not read."""
    where = standing(local_path(folder, "a probe"))
    document = read_document(where)
    return document, training_of(document.extra, where)


def training_of(extra: Any, where: object) -> Training:
    """Return the record of its training that was saved with the probe `where`."""
    try:
        return msgspec.convert(extra, Training)
    except ValueError as error:
        raise UserError(f"{where}: {DOCUMENT}: extra: {error}; fit the probe again") from None
