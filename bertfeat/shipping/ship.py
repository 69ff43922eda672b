"""`ship`: a fitted probe becomes a model folder of another library, with the blocks that it needs and a model card."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfeat.choices import Level
from bertfeat.durable.output_check import check_folder
from bertfeat.durable.publication import publish_folder, recover
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.hub import TOKENIZER_FILES
from bertfeat.errors import UserError, did_you_mean
from bertfeat.extraction.resolution import check_model
from bertfeat.shipping.transformers_folder import NotExpressed
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

#: The targets, and the module of each: `reasons(probe, checkpoint)` are why it cannot express a probe, and whether each
#: is true, and `write(probe, checkpoint, folder)` writes all files but the model card.
TARGETS = {
    "transformers": "bertfeat.shipping.transformers_folder",
    "sentence-transformers": "bertfeat.shipping.sentence_folder",
    "onnx": "bertfeat.shipping.onnx_folder",
}
CARD = "README.md"
_MADE_BY = "bertfeat probe ship"
# How each target is used.
_USE = {
    "transformers": "from transformers import pipeline\n\nlabel = pipeline({task!r}, {folder!r})\n"
    "print(label('Some text.'))",
    "sentence-transformers": "from sentence_transformers import SentenceTransformer\n\n"
    "model = SentenceTransformer({folder!r})\nscores = model.encode(['Some text.'])\n"
    "print(model[0].auto_model.config.id2label[scores[0].argmax()])",
    "onnx": "import onnxruntime\nfrom tokenizers import Tokenizer\n\n"
    "session = onnxruntime.InferenceSession({folder!r} + '/model.onnx')\n"
    "tokenizer = Tokenizer.from_file({folder!r} + '/tokenizer.json')\n"
    "print([one.name for one in session.get_inputs()], [one.name for one in session.get_outputs()])",
}


@dataclass(frozen=True, slots=True)
class Shipped:
    """A shipped model: its folder, the blocks that it keeps, and its size beside that of the whole base model."""

    target: str
    path: Path
    model: str
    n_blocks: int
    n_blocks_of_model: int
    n_bytes: int
    n_bytes_of_model: int
    labels: tuple[Any, ...]


def ship(probe: FittedProbe, output: str | Path, *, to: str = "transformers", overwrite: bool = False) -> Shipped:
    """Write a probe and the blocks that it needs as a model folder; see `FittedProbe.ship`."""
    folder, mine = local_path(output, "a model"), f"probe {probe.name}"
    if probe.level is Level.SPAN:
        if not probe.spec.is_alone:
            raise UserError(f"{mine}: level span needs the spans of a text, which no such model takes; use `predict`")
        # A chunk that is encoded alone is a text of its own.
        spec = replace(probe.spec, level=Level.SENTENCE, is_alone=False)
        probe = replace(probe, training=replace(probe.training, spec=spec))
    if to not in TARGETS:
        raise UserError(f"`to` {to!r}: {did_you_mean(to, TARGETS) or 'must be one of ' + ', '.join(TARGETS)}")
    recover(folder)
    check = partial(_check, folder, overwrite=overwrite)
    check()
    probe.spec.require_known_model()
    checkpoint = open_checkpoint(probe.spec.model, probe.spec.revision)
    check_model(probe.spec, checkpoint, mine=mine)
    if (reason := _refusal(probe, checkpoint, to)) is not None:
        raise UserError(f"{mine}: {reason}{_remedy(probe, checkpoint, (name for name in TARGETS if name != to))}")
    with publish_folder(folder, check) as new:
        try:
            import_module(TARGETS[to]).write(probe, checkpoint, new)
        except NotExpressed as error:
            raise UserError(f"{mine}: {error}{_remedy(probe, checkpoint, ['onnx'])}") from None
        (new / CARD).write_text(_model_card(probe, checkpoint, to, folder.name), encoding="utf-8")
    whole = [*checkpoint.weights_files, *map(checkpoint.folder.joinpath, ("config.json", *TOKENIZER_FILES))]
    return Shipped(
        target=to,
        path=folder,
        model=probe.spec.model,
        n_blocks=max(probe.spec.layers),
        n_blocks_of_model=checkpoint.n_layers,
        n_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        n_bytes_of_model=sum(file.stat().st_size for file in whole if file.is_file()),
        labels=tuple(probe.probe.classes_.tolist()),
    )


def _refusal(probe: FittedProbe, checkpoint: Checkpoint, to: str) -> str | None:
    """Return the first reason that is true why a target cannot express a probe; None if it may."""
    reasons = {
        f"{probe.spec.model} holds static vectors, not a model with blocks": checkpoint.facts is None,
        "it reads sentences together with their neighbors (`document_context`)": probe.spec.document_context,
        **import_module(TARGETS[to]).reasons(probe, checkpoint),
    }
    return next((reason for reason, is_true in reasons.items() if is_true), None)


def _remedy(probe: FittedProbe, checkpoint: Checkpoint, others: Iterable[str]) -> str:
    """Return the end of a refusal: the first of other targets that can express the probe, if there is one."""
    return next((f"; pass `to='{name}'`" for name in others if _refusal(probe, checkpoint, name) is None), "")


def _check(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds anything but a model that was shipped before."""
    card, own = folder / CARD, [CARD]
    if card.is_file() and _MADE_BY in card.read_text(encoding="utf-8", errors="replace"):
        own += [entry.name + "/" * entry.is_dir() for entry in folder.iterdir()]
    check_folder(folder, "a shipped model", own, overwrite=overwrite)


def _model_card(probe: FittedProbe, checkpoint: Checkpoint, target: str, folder: str) -> str:
    """Return the text of the card; `folder` is the name of the model's folder."""
    spec, training = probe.spec, probe.training
    task = "text-classification" if spec.level is Level.SENTENCE else "token-classification"
    # A folder on this machine is not a name that others can look up.
    base = spec.model if checkpoint.revision else Path(spec.model).name
    scores = {name: score.mean for name, score in (training.scores or {}).items()}
    metadata: dict[str, Any] = {"library_name": target, "pipeline_tag": task, "tags": ["bertfeat", probe.probe.head]}
    if checkpoint.revision:
        metadata["base_model"] = base
    if scores and training.dev is not None:
        data = {"name": training.dev.store, "type": training.dev.store}
        metrics = [{"type": name, "value": value} for name, value in scores.items()]
        results = [{"task": {"type": task}, "dataset": data, "metrics": metrics}]
        metadata["model-index"] = [{"name": folder, "results": results}]
    facts = {
        "Base model": f"{base}, {max(spec.layers)} of {checkpoint.n_layers} blocks",
        "Feature": f"{spec.feature} of each {spec.level}" + (f", pooling {spec.pooling}" if spec.pooling else ""),
        "Head": f"{probe.probe.head}, fitted on {training.n_rows:,} rows of {training.store}",
        "Label": probe.label,
        "Classes": ", ".join(map(str, probe.probe.classes_.tolist())),
        **{f"{name} on {training.dev and training.dev.store}": f"{value:.4f}" for name, value in scores.items()},
        "License": "that of the base model applies; add it here",
    }
    notes = [
        f"Texts of more than {spec.max_length} tokens are cut off here, where bertfeat reads them in windows.",
        "Scores of classes are not probabilities." * (not hasattr(probe.probe, "predict_proba")),
        "bertfeat rounds features to float16, so its probabilities differ by some 0.001."
        * (spec.store_dtype == "float16"),
    ]
    # JSON is YAML too.
    front = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in metadata.items()]
    use = _USE[target].format(task=task, folder=folder)
    lines = ["---", *front, "---", f"# {folder}", f"Labels each {spec.level} with {probe.label}; made by `{_MADE_BY}`."]
    lines += ["", *(f"- {name}: {value}" for name, value in facts.items() if value), ""]
    return "\n".join([*lines, f"```python\n{use}\n```\n", *filter(None, notes), ""])
