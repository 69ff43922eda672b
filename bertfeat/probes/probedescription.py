"""Description of a saved probe: its feature, its labels and its training, read without loading the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from bertfeat.choices import Level
from bertfeat.durable.decoding import decode
from bertfeat.durable.files import os_errors
from bertfeat.durable.publication import standing
from bertfeat.errors import UserError
from bertfeat.heads.probedocument import check_target, damaged, read_document
from bertfeat.storage import local_path
from bertfeat.store.provenance import FeatureSpec


@dataclass(frozen=True)
class ProbeDescription:
    """Metadata of a saved probe; see `FittedProbe`."""

    spec: FeatureSpec
    label: str
    first_tokens: bool
    training: Mapping[str, Any]

    @classmethod
    def from_json(cls, values: Mapping[str, Any], folder: str | Path) -> Self:
        """Read what `to_json` gave; `folder` is the probe, for messages.

        Raises:
            UserError: A field is missing, unknown, or has a wrong value.
        """
        try:
            found = decode(cls, dict(values))
            if found.first_tokens and found.spec.level is not Level.TOKEN:
                raise ValueError(f"first_tokens: true at level {found.spec.level}")
        except ValueError as error:
            raise UserError(
                f"{folder}: the probe's description of its features is damaged ({error}); fit it again"
            ) from None
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "spec": self.spec.to_dict(),
            "label": self.label,
            "first_tokens": self.first_tokens,
            "training": dict(self.training),
        }

    def summary(self, head: str, params: Mapping[str, Any], classes: list[Any]) -> dict[str, Any]:
        """Return the head, the feature, the classes and the record of the training as JSON values."""
        return {
            "head": head,
            "params": dict(params),
            "level": str(self.spec.level),
            "feature": self.spec.feature,
            "label": self.label,
            "first_tokens": self.first_tokens,
            "model": self.spec.model,
            "layers": list(self.spec.layers),
            "pooling": self.spec.pooling,
            "classes": classes,
            **self.training,
        }


@dataclass(frozen=True)
class _Mean:
    mean: float
    n: int
    deviation: float | None = None


@dataclass(frozen=True)
class _Dev:
    store: str


@dataclass(frozen=True)
class Training:
    """The entries of a training record that are shown; each may be missing."""

    store: str | None = None
    labels: str | None = None
    n_rows: int | None = None
    n_documents: int | None = None
    n_without_label: int = 0
    n_without_vector: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    dev: _Dev | None = None
    seed: Any = None
    seeds: tuple[Any, ...] = ()
    scores: Mapping[str, _Mean] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    created_at: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, notes: Mapping[str, Any]) -> Self:
        """Return the entries of a training record; raise a ValueError if one has the wrong type."""
        known = {name: notes[name] for name in cls.__dataclass_fields__ if notes.get(name) is not None}
        if isinstance(known.get("dev"), dict):
            known["dev"] = {"store": known["dev"].get("store")}
        return decode(cls, known)


@os_errors(UserError)
def describe_probe(folder: str | Path) -> dict[str, Any]:
    """Return what a saved probe is as JSON values; its weights are not read.

    Returns:
        The values of `FittedProbe.summary`; also `probe` (the folder), `spec` (all settings of its feature) and
        `n_bytes` (of its weights).

    Raises:
        UserError: The folder has no probe, or its description is damaged.
    """
    where = standing(local_path(folder, "a probe"))
    document = read_document(where)
    found = ProbeDescription.from_json(document["extra"], folder)
    try:
        Training.of(found.training)
        classes = decode(tuple[Any, ...], document["classes"].get("values"))
        n_bytes = decode(int, document["weights"].get("n_bytes"))
    except ValueError as error:
        raise damaged(where, str(error)) from None
    return {
        "probe": str(folder),
        **found.summary(document["head"], document["params"], list(classes)),
        "spec": found.spec.to_dict(),
        "n_bytes": n_bytes,
    }


def check_probe_folder(folder: str | Path, *, overwrite: bool) -> None:
    """Check, before a fit, that a probe can be saved to a folder afterwards.

    Raises:
        UserError: Something is already there, or no folder can be made there.
    """
    check_target(local_path(folder, "a probe"), overwrite=overwrite)
