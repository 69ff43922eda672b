"""The model card of a shipped probe: a README.md with the metadata that model hubs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfeat.choices import Level
from bertfeat.encoder.checkpoint import Checkpoint

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

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


def model_card(probe: FittedProbe, checkpoint: Checkpoint, target: str, folder: str) -> str:
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
    use = _USE.get(target, "").format(task=task, folder=folder)
    lines = ["---", *front, "---", f"# {folder}", f"Labels each {spec.level} with {probe.label}; made by `{_MADE_BY}`."]
    lines += ["", *(f"- {name}: {value}" for name, value in facts.items() if value), ""]
    return "\n".join([*lines, f"```python\n{use}\n```\n" * bool(use), *filter(None, notes), ""])


def is_shipped(folder: Path) -> bool:
    """Return whether a folder has the model card of a shipped probe."""
    card = folder / CARD
    return card.is_file() and _MADE_BY in card.read_text(encoding="utf-8", errors="replace")
