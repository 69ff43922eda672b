"""Summaries of a saved probe and of a sweep for the command line, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertfeat.cli.progress import counted, human_bytes, human_time
from bertfeat.display import model_text, printable
from bertfeat.durable.records import to_values
from bertfeat.probes.probedescription import Training, UsedRows, describe_probe
from bertfeat.probes.sweepresult import read_sweep
from bertfeat.store.provenance import FeatureSpec

_NAMES = {"accuracy": "accuracy", "macro_f1": "macro F1", "entity_f1": "entity F1"}
_MAX_LABELS = 20


def inspect_probe(folder: str) -> tuple[dict[str, Any], list[str]]:
    """Return what a saved probe is as JSON values and as lines.

    Raises:
        UserError: The folder has no probe, or its description is damaged.
    """
    document, about = describe_probe(folder)
    notes, spec, classes = about.training, about.spec, document.classes.values
    values = {"probe": folder, **about.summary(document.head, document.params, classes)}
    missing, beside = left_out(notes), f", labels from {notes.labels}" if notes.labels else ""
    return {**values, "spec": to_values(spec), "n_bytes": document.weights.n_bytes}, [
        (
            f"{folder}: {document.head} on {spec.feature}, level {spec.level}, "
            f"label {about.label!r}, {counted(len(classes), 'label')}"
        ),
        "",
        *_feature_lines(spec),
        f"trained    on store {notes.store}: {notes.n_rows:,} rows of {notes.n_documents:,} documents{beside}"
        + (f"; left out {missing}" if missing else ""),
        f"labels     {_labels(classes, notes)}",
        f"head       {document.head}: {', '.join(f'{k} {v!s:.60}' for k, v in document.params.items()) or '-'}",
        f"scores     {scores_text(notes)}" + (f"; scored on store {notes.dev.store}" if notes.dev else ""),
        f"made by    {_made_by(notes)}",
        f"size       {human_bytes(document.weights.n_bytes)}",
    ]


def _feature_lines(spec: FeatureSpec) -> list[str]:
    special = ", special tokens included" if spec.include_special_tokens else ""
    pooled = f"; pooled by {spec.pooling}{special}" if spec.pooling else ""
    context = ", with document context" if spec.document_context else ""
    prompt = f", after the prompt {spec.prompt!r}" if spec.prompt else ""
    facts = to_values(spec)
    return [
        f"features   {spec.feature}[{spec.dim}], layers {', '.join(map(str, spec.layers))}{pooled}",
        f"model      {model_text(facts)} ({spec.family}, {spec.n_layers} layers)",
        f"weights    sha256 {spec.weights_sha256}",
        f"tokenizer  sha256 {spec.tokenizer_sha256}",
        (
            f"windows    up to {spec.max_length} tokens, overlap {spec.stride}, "
            f"on-overlong {spec.on_overlong}{context}{prompt}"
        ),
        f"encoder    {spec.compute_dtype}, stored as {spec.store_dtype}",
    ]


def left_out(rows: UsedRows) -> str:
    """Return how many rows were left out, and why; empty without such rows."""
    missing = {"without a label": rows.n_without_label, "without a vector": rows.n_without_vector}
    return ", ".join(f"{n:,} {why}" for why, n in missing.items() if n)


def _labels(classes: Sequence[Any], notes: Training) -> str:
    shown = [
        printable(str(name)) + (f" ({notes.counts[str(name)]:,})" if str(name) in notes.counts else "")
        for name in classes[:_MAX_LABELS]
    ]
    more = len(classes) - len(shown)
    return ", ".join(shown) + (f", and {more:,} more" if more else "")


def scores_text(notes: Training) -> str:
    """Return the mean scores on dev, with the deviation over seeds."""
    shown = []
    for metric, score in (notes.scores or {}).items():
        deviation = "" if score.deviation is None else f" ± {score.deviation:.4f}"
        shown.append(f"{_NAMES.get(metric, metric)} {score.mean:.4f}{deviation}")
    seeds = f" over {len(notes.seeds)} seeds; seed {notes.seed} is kept" if len(notes.seeds) > 1 else ""
    return f"{', '.join(shown)}{seeds}" or "none: fitted without --dev"


def _made_by(notes: Training) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in notes.versions.items())
    return f"{versions} on {notes.created_at[:10]}, in {human_time(notes.seconds)}"


def inspect_sweep(folder: str) -> tuple[dict[str, Any], list[str]]:
    """Return what a sweep found as JSON values and as lines.

    Raises:
        UserError: The folder has no sweep, or its result is damaged.
    """
    found = read_sweep(folder)
    return {"sweep": folder, **found.to_dict()}, [
        (
            f"{folder}: {found.head} on {counted(len(found.rows), 'feature')}, level {found.level}, "
            f"label {found.label!r}, {counted(found.n_classes, 'label')}"
        ),
        "",
        (
            f"trained    on store {found.store} (model {model_text(found.to_dict())}): {found.n_train:,} rows; "
            f"scored on {found.n_dev:,} rows"
        ),
        f"made by    bertfeat {found.bertfeat}",
        "",
        found.table(),
        "",
        found.best_line(),
    ]
