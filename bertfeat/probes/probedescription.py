"""Description of a saved probe: its feature, its labels and its training, read without loading the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bertfeat.durable.files import os_errors
from bertfeat.durable.publication import standing
from bertfeat.durable.records import to_values
from bertfeat.errors import UserError
from bertfeat.heads.probefolder import DOCUMENT, ProbeDocument, check_target, read_document
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedRows:
    """Rows that a probe learned from or was scored on.

    Attributes:
        store: The name of the store.
        plan_hash: The hash of its plan.
        labels: The file with the labels, or None for a column of the store.
        n_rows: The number of rows.
        n_documents: The number of their documents.
        n_without_vector: Rows left out because they have no vector.
        n_without_label: Rows left out because they have no label.
        n_classes: The number of labels.
        counts: The number of rows of each label.
    """

    store: str
    plan_hash: str
    labels: str | None
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
    """A record of the training of a probe.

    Attributes:
        limit: The number of documents to learn from; None for all.
        dev: The rows that it was scored on; None without dev.
        seeds: The seeds that were fitted; empty for a head without randomness.
        seed: The seed that was kept.
        n_seeds_asked: The number of seeds that were asked for.
        trials: Of each fit: `seed`, `dev` (its scores), `fit_report`.
        fit_report: The report of the head; see `Probe.fit_report`.
        metric: The score that chose the seed; None without dev.
        scores: The mean scores on dev by name; None without dev.
        streamed: Whether the vectors were streamed from the store.
        seconds: The seconds of reading and fitting.
        versions: The version of each library.
        created_at: The time, ISO 8601, UTC.
    """

    limit: int | None
    dev: DevRows | None
    seeds: tuple[int, ...]
    seed: int | None
    n_seeds_asked: int
    trials: tuple[Mapping[str, Any], ...]
    fit_report: Mapping[str, Any]
    metric: str | None
    scores: Mapping[str, MeanScore] | None
    streamed: bool
    seconds: float
    versions: Mapping[str, str]
    created_at: str


@dataclass(frozen=True, slots=True)
class ProbeDescription:
    """Metadata of a saved probe; see `FittedProbe`."""

    spec: FeatureSpec
    label: str
    first_tokens: bool
    training: Training

    def summary(self, head: str, params: Mapping[str, Any], classes: Sequence[Any]) -> dict[str, Any]:
        """Return the head, the feature, the classes and the record of the training as JSON values."""
        spec = self.spec
        facts = {
            "head": head,
            "params": params,
            "level": spec.level,
            "feature": spec.feature,
            "label": self.label,
            "first_tokens": self.first_tokens,
            "model": spec.model,
            "layers": spec.layers,
            "pooling": spec.pooling,
            "classes": classes,
        }
        return {**to_values(facts), **to_values(self.training)}


@os_errors(UserError)
def describe_probe(folder: str | Path) -> tuple[ProbeDocument, ProbeDescription]:
    """Return what `probe.json` of a saved probe says; its weights are not read.

    Raises:
        UserError: The folder has no probe, or its description is damaged.
    """
    where = standing(local_path(folder, "a probe"))
    document = read_document(where)
    return document, description_of(document.extra, where)


def description_of(extra: Any, where: object) -> ProbeDescription:
    """Return the description that is saved with a probe; `where` is the probe, for messages.

    Raises:
        UserError: Something else was saved with it.
    """
    try:
        return msgspec.convert(extra, ProbeDescription)
    except ValueError as error:
        raise UserError(f"{where}: {DOCUMENT}: extra: {error}; fit the probe again") from None


def check_probe_folder(folder: str | Path, *, overwrite: bool) -> None:
    """Check, before a fit, that a probe can be saved to a folder afterwards.

    Raises:
        UserError: Something is already there, or no folder can be made there.
    """
    check_target(local_path(folder, "a probe"), overwrite=overwrite)
