"""`ship`: a fitted probe becomes a model folder of another library, with the blocks that it needs and a model card."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCardData

from bertfeat.choices import Level, Pooling, Task, WordPooling
from bertfeat.durable.publication import OutputFolder, recover
from bertfeat.encoder.checkpoint import Checkpoint, open_checkpoint
from bertfeat.encoder.hub import TOKENIZER_FILES
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import UserError, did_you_mean
from bertfeat.extraction.pooling import MODES
from bertfeat.extraction.resolution import check_model
from bertfeat.shipping.linear_map import is_linear
from bertfeat.shipping.model_folder import NotExpressed, write_classifier, write_embedder
from bertfeat.shipping.onnx_folder import write_graph
from bertfeat.storage import local_path

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

#: The targets, and the function of each that writes all files but the model card: (probe, checkpoint, folder).
TARGETS = {"transformers": write_classifier, "sentence-transformers": write_embedder, "onnx": write_graph}
_CARD = "README.md"
_OF_ONE_TOKEN = (None, WordPooling.FIRST, Pooling.CLS, Pooling.POOLER, Pooling.LASTTOKEN)
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
    place = _place_of(folder)
    place.check(folder, overwrite=overwrite)
    probe.spec.require_known_model()
    checkpoint = open_checkpoint(probe.spec.model, probe.spec.revision)
    check_model(probe.spec, checkpoint, mine=mine)
    if (reason := _refusal(probe, checkpoint, to)) is not None:
        raise UserError(f"{mine}: {reason}{_remedy(probe, checkpoint, (name for name in TARGETS if name != to))}")
    with place.publish(folder, overwrite=overwrite) as new, no_progress_bars():
        try:
            TARGETS[to](probe, checkpoint, new)
        except NotExpressed as error:
            raise UserError(f"{mine}: {error}{_remedy(probe, checkpoint, ['onnx'])}") from None
        (new / _CARD).write_text(_model_card(probe, checkpoint, to, folder.name), encoding="utf-8")
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
    """Return the first reason why a target cannot express a probe, the end of a sentence; None if it may."""
    from transformers.models.auto import modeling_auto

    spec, head, task, kind = probe.spec, probe.probe.head, probe.probe.task, checkpoint.family.model_type
    of_texts, pooling = spec.level is Level.SENTENCE, spec.pooling
    is_max = pooling == Pooling.MAX and not spec.include_special_tokens
    drops_prompt = bool(spec.prompt) and pooling != Pooling.MODEL and not spec.include_special_tokens
    known = getattr(modeling_auto, f"MODEL_FOR_{'SEQUENCE' if of_texts else 'TOKEN'}_CLASSIFICATION_MAPPING_NAMES")
    of_all = {
        f"{spec.model} holds static vectors, not a model with blocks": checkpoint.facts is None,
        "it reads sentences together with their neighbors (`document_context`)": spec.document_context,
    }
    of_linear = {
        f"{spec.feature} has {len(spec.layers)} layers, and the target one": len(spec.layers) > 1,
        f"head {head} is not linear (fit logreg, svm, ridge or centroid)": not is_linear(probe.probe),
    }
    of_one = {
        "transformers": {
            **of_linear,
            f"pooling {pooling} is not the state of one token": pooling not in _OF_ONE_TOKEN,
            f"task {task} of a {spec.level} does not classify tokens": not of_texts and task != Task.CLASSIFY,
            "transformers puts no prompt before texts": bool(spec.prompt),
            f"transformers has no such classifier for models of the type {kind}": kind not in known,
        },
        "sentence-transformers": {
            **of_linear,
            f"sentence-transformers labels no {spec.level}, only texts": not of_texts,
            f"sentence-transformers has no pooling {pooling}": pooling == Pooling.POOLER or pooling not in [*Pooling],
            "max of sentence-transformers counts special tokens (`include_special_tokens`)": is_max,
        },
        "onnx": {
            f"head {head} is not a network that reads each row alone": head in ("knn", "bilstm", "mean"),
            f"torch exports no models of the type {kind}": checkpoint.family.type_ids,
            f"its vectors leave out the prompt {spec.prompt!r:.60} before texts": drops_prompt,
            f"pooling {pooling} is of another package": pooling not in (None, Pooling.MODEL, *MODES),
        },
    }
    return next((reason for reason, is_true in (of_all | of_one[to]).items() if is_true), None)


def _remedy(probe: FittedProbe, checkpoint: Checkpoint, others: Iterable[str]) -> str:
    """Return the end of a refusal: the first of other targets that can express the probe, if there is one."""
    return next((f"; pass `to='{name}'`" for name in others if _refusal(probe, checkpoint, name) is None), "")


def _place_of(folder: Path) -> OutputFolder:
    """Return what may be replaced in a folder: nothing but a model that was shipped before."""
    recover(folder)
    card, names = folder / _CARD, list[str]()
    if card.is_file() and _MADE_BY in card.read_text(encoding="utf-8", errors="replace"):
        names = [entry.name + "/" * entry.is_dir() for entry in folder.iterdir()]
    return OutputFolder("a shipped model", (_CARD, *names))


def _model_card(probe: FittedProbe, checkpoint: Checkpoint, target: str, folder: str) -> str:
    """Return the text of the card; `folder` is the name of the model's folder."""
    spec, training = probe.spec, probe.training
    task = "text-classification" if spec.level is Level.SENTENCE else "token-classification"
    # A folder on this machine is not a name that others can look up.
    base = spec.model if checkpoint.revision else Path(spec.model).name
    dev = "" if training.dev is None else training.dev.store
    scores = {name: score.mean for name, score in (training.scores or {}).items()}
    front = ModelCardData(
        library_name=target,
        pipeline_tag=task,
        tags=["bertfeat", probe.probe.head],
        base_model=base if checkpoint.revision else None,
        model_name=folder if scores else None,
        eval_results=[EvalResult(task, dev, dev, name, value) for name, value in scores.items()] or None,
    )
    facts = {
        "Base model": f"{base}, {max(spec.layers)} of {checkpoint.n_layers} blocks",
        "Feature": f"{spec.feature} of each {spec.level}" + (f", pooling {spec.pooling}" if spec.pooling else ""),
        "Head": f"{probe.probe.head}, fitted on {training.n_rows:,} rows of {training.store}",
        "Label": probe.label,
        "Classes": ", ".join(map(str, probe.probe.classes_.tolist())),
        **{f"{name} on {dev}": f"{value:.4f}" for name, value in scores.items()},
        "License": "that of the base model applies; add it here",
    }
    notes = [
        f"Texts of more than {spec.max_length} tokens are cut off here, where bertfeat reads them in windows.",
        "Scores of classes are not probabilities." * (not hasattr(probe.probe, "predict_proba")),
        "bertfeat rounds features to float16, so its probabilities differ by some 0.001."
        * (spec.store_dtype == "float16"),
    ]
    use = _USE[target].format(task=task, folder=folder)
    lines = ["---", front.to_yaml(), "---", f"# {folder}"]
    lines += [f"Labels each {spec.level} with {probe.label}; made by `{_MADE_BY}`.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if value]
    return "\n".join([*lines, f"\n```python\n{use}\n```\n", *filter(None, notes), ""])
