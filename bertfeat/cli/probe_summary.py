"""Summaries of a saved probe and of a sweep for the command line, as text and as JSON."""

from __future__ import annotations

from typing import Any

from bertfeat.cli.progress import counted, human_bytes, human_time
from bertfeat.display import model_text, printable, weights_text
from bertfeat.probes.probedescription import Training, describe_probe
from bertfeat.probes.sweepresult import read_sweep

_NAMES = {"accuracy": "accuracy", "macro_f1": "macro F1", "micro_f1": "micro F1", "entity_f1": "entity F1"}
_MAX_LABELS = 20


def inspect_probe(folder: str) -> tuple[dict[str, Any], list[str]]:
    """Return what a saved probe is as JSON values and as lines.

    Raises:
        UserError: The folder has no probe, or its description is damaged.
    """
    summary = describe_probe(folder)
    notes = Training.of(summary)
    return summary, [
        (
            f"{folder}: {summary['head']} on {summary['feature']}, level {summary['level']}, "
            f"label {summary['label']!r}, {counted(len(summary['classes']), 'label')}"
        ),
        "",
        *_feature_lines(summary["spec"]),
        *_training_lines(notes),
        f"labels     {_labels(summary['classes'], notes)}",
        f"head       {summary['head']}: {', '.join(f'{k} {v!s:.60}' for k, v in summary['params'].items()) or '-'}",
        f"scores     {scores_text(notes)}" + (f"; scored on store {notes.dev.store}" if notes.dev else ""),
        f"made by    {_made_by(notes)}",
        f"size       {human_bytes(summary['n_bytes'])}",
    ]


def _feature_lines(spec: dict[str, Any]) -> list[str]:
    special = ", special tokens included" if spec["include_special_tokens"] else ""
    pooled = f"; pooled by {spec['pooling']}{special}" if spec["pooling"] else ""
    context = ", with document context" if spec["document_context"] else ""
    prompt = f", after the prompt {spec['prompt']!r}" if spec["prompt"] else ""
    return [
        f"features   {spec['feature']}[{spec['dim']}], layers {', '.join(map(str, spec['layers']))}{pooled}",
        f"model      {model_text(spec)} ({spec['family']}, {spec['n_layers']} layers)",
        f"weights    {weights_text(spec)}",
        f"tokenizer  sha256 {spec['tokenizer_sha256']}",
        (
            f"windows    up to {spec['max_length']} tokens, overlap {spec['stride']}, "
            f"on-overlong {spec['on_overlong']}{context}{prompt}"
        ),
        f"encoder    {spec['compute_dtype']}, stored as {spec['store_dtype']}",
    ]


def _training_lines(notes: Training) -> list[str]:
    if notes.n_rows is None:
        return ["trained    no record"]
    missing = {"without a label": notes.n_without_label, "without a vector": notes.n_without_vector}
    left_out = ", ".join(f"{n:,} {why}" for why, n in missing.items() if n)
    beside = f", labels from {notes.labels}" if notes.labels else ""
    return [
        f"trained    on store {notes.store}: {notes.n_rows:,} rows of {notes.n_documents or 0:,} documents{beside}"
        + (f"; left out {left_out}" if left_out else "")
    ]


def _labels(classes: list[Any], notes: Training) -> str:
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
    when = f" on {notes.created_at[:10]}" if notes.created_at else ""
    return f"{versions or 'unknown versions'}{when}, in {human_time(notes.seconds)}"


def inspect_sweep(folder: str) -> tuple[dict[str, Any], list[str]]:
    """Return what a sweep found as JSON values and as lines.

    Raises:
        UserError: The folder has no sweep, or its result is damaged.
    """
    found = read_sweep(folder)
    asked = found.settings
    return {"sweep": folder, **found.to_dict()}, [
        (
            f"{folder}: {asked['head']} on {counted(len(found.rows), 'feature')}, level {asked['level']}, "
            f"label {asked['label']!r}, {counted(asked['n_classes'], 'label')}"
        ),
        "",
        (
            f"trained    on store {asked['store']} (model {model_text(asked)}): {asked['n_train']:,} rows; "
            f"scored on {asked['n_dev']:,} rows"
        ),
        f"made by    bertfeat {asked['bertfeat']}",
        "",
        found.table(),
        "",
        found.best_line(),
    ]
