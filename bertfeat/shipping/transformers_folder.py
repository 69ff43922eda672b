"""A shipped probe as a model of transformers: `...ForTokenClassification`, or `...ForSequenceClassification`."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from bertfeat.choices import Level, OnOverlong, Pooling, Task, WordPooling
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.entry_points import build_config
from bertfeat.encoder.hub import TOKENIZER_FILES
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.encoder.weights import read_tokenizer_config
from bertfeat.errors import UserError, checkpoint_errors
from bertfeat.extraction.documents import documents_of
from bertfeat.extraction.flow import Flow
from bertfeat.shipping.linear_map import linear_layer, linear_map

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

#: What a model is compared with bertfeat on.
TEXTS = (
    "Rain",
    "It rains in Berlin.",
    "Ana bought 42 old books at the market, and her brother carried them home.",
    "The committee has not decided yet. Some members asked for more time; others, such as Dr. Okoye, left early!",
)
# The largest difference of scores, as a share of the largest score if that is above 1; and one that shows that the head
# magnifies what float32 rounds off.
_MAX_DIFFERENCE, _ROUNDING = 1e-4, 0.05
# Scores times this power of two, which is exact, are so small that tanh in float32 leaves them as they are.
_SMALL = 2.0**-18
_OF_ONE_TOKEN = (None, WordPooling.FIRST, Pooling.CLS, Pooling.POOLER, Pooling.LASTTOKEN)


class NotExpressed(UserError):
    """A model was built, and it does not give the scores of the probe."""


def reasons(probe: FittedProbe, checkpoint: Checkpoint) -> dict[str, bool]:
    """Return reasons why the target cannot express a probe, each the end of a sentence, and which are true."""
    from transformers.models.auto import modeling_auto

    spec, task, kind = probe.spec, probe.probe.task, checkpoint.family.model_type
    of_texts = spec.level is Level.SENTENCE
    known = getattr(modeling_auto, f"MODEL_FOR_{'SEQUENCE' if of_texts else 'TOKEN'}_CLASSIFICATION_MAPPING_NAMES")
    return reasons_of_one_layer(probe) | {
        f"pooling {spec.pooling} is not the state of one token": spec.pooling not in _OF_ONE_TOKEN,
        f"task {task} of a {spec.level} does not classify tokens": not of_texts and task != Task.CLASSIFY,
        "transformers puts no prompt before texts": bool(spec.prompt),
        f"transformers has no such classifier for models of the type {kind}": kind not in known,
    }


def reasons_of_one_layer(probe: FittedProbe) -> dict[str, bool]:
    """Return reasons why a target with one layer and a linear head cannot express a probe, and which are true."""
    spec, head = probe.spec, probe.probe
    return {
        f"{spec.feature} has {len(spec.layers)} layers, and the target one": len(spec.layers) > 1,
        f"head {head.head} is not linear (fit logreg, svm, ridge or centroid)": linear_map(head) is None,
    }


def write(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the cut model with the head as its classifier, and the tokenizer."""
    import transformers

    weight, bias = linear_layer(probe.probe)
    kind = "Sequence" if probe.level is Level.SENTENCE else "Token"
    model = load_cut(probe, checkpoint, getattr(transformers, f"AutoModelFor{kind}Classification"))
    copy_tokenizer(probe, checkpoint, folder)
    with checkpoint_errors(checkpoint.folder, "its tokenizer does not load"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def run() -> list[Any]:
        with torch.inference_mode():
            encoded = (tokenizer(text, return_tensors="pt", truncation=True) for text in TEXTS)
            return [model(**one).logits.reshape(-1, len(bias)).numpy() for one in encoded]

    require_scores(probe, checkpoint, (run() for _ in _foldings(model, weight, bias)))
    with no_progress_bars():
        model.save_pretrained(folder)


def load_cut(probe: FittedProbe, checkpoint: Checkpoint, auto_class: Any) -> Any:
    """Load a model of transformers with the blocks up to the probe's layer and the probe's labels, as float32."""
    (n_blocks,), task = probe.spec.layers, probe.probe.task
    labels = [str(label) for label in probe.probe.classes_.tolist()] or [probe.label]
    if task == Task.REGRESS and (linear := linear_map(probe.probe)) and len(linear[1]) > 1:
        labels = [f"{probe.label}_{number}" for number in range(len(linear[1]))]
    config = build_config(checkpoint.folder, checkpoint.config)
    with checkpoint_errors(checkpoint.folder, f"transformers cannot load {n_blocks} blocks of it"), no_progress_bars():
        for name, value in list(vars(config).items()):
            # Such as the types of the blocks.
            if isinstance(value, list) and len(value) == checkpoint.n_layers:
                setattr(config, name, value[:n_blocks])
        config.num_hidden_layers = n_blocks
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
        kinds = {Task.CLASSIFY: "single_label_classification", Task.MULTILABEL: "multi_label_classification"}
        config.problem_type = kinds.get(Task(task), "regression")
        options = {"dtype": torch.float32, "use_safetensors": True, "local_files_only": True}
        return auto_class.from_pretrained(checkpoint.folder, config=config, **options).eval()


def copy_tokenizer(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the files of a model's tokenizer, with the probe's window as the limit of a text."""
    for name in TOKENIZER_FILES:
        if (checkpoint.folder / name).is_file():
            shutil.copyfile(checkpoint.folder / name, folder / name)
    settings = {**read_tokenizer_config(checkpoint.folder), "model_max_length": probe.spec.max_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, ensure_ascii=False, indent=1), encoding="utf-8")


def require_scores(probe: FittedProbe, checkpoint: Checkpoint, ways: Iterable[Sequence[Any]]) -> None:
    """Stop at the first way to build a model whose scores for `TEXTS` are the probe's; refuse it if none is.

    A way has the scores of each text, (n_rows, n_outputs): a row for the text or, at the token level and for words by
    their first tokens, for each token, special ones included. Those of the probe are of vectors in float32.
    """
    spec = dataclasses.replace(probe.spec, store_dtype="float32", compute_dtype="float32")
    if spec.level is Level.WORD:
        spec = dataclasses.replace(spec, level=Level.TOKEN, pooling=None)
    flow = Flow.of(spec.extract_config(device="cpu", on_overlong=OnOverlong.TRUNCATE), checkpoint)
    linear = linear_map(probe.probe)
    assert linear is not None
    tables = [table for text in TEXTS for table in flow.run(documents_of([text])).values()]
    expected = [spec.vectors_in(table) @ linear[0].T + linear[1] for table in tables]
    largest, least = max(1.0, *(float(np.abs(mine).max()) for mine in expected)), np.inf
    for found in ways:
        differences = [float(np.abs(mine - theirs).max()) for mine, theirs in zip(expected, found, strict=True)]
        least = min(least, max(differences) / largest)
        if least <= _MAX_DIFFERENCE:
            return
    text = f"scores of the model that was built differ by {least:.2g}, more than {_MAX_DIFFERENCE:g}"
    remedy = "; float32 is too coarse for this head, fit it with `standardize=False`"
    raise NotExpressed(text + (remedy if least < _ROUNDING else ""))


def _foldings(model: nn.Module, weight: torch.Tensor, bias: torch.Tensor) -> Iterator[None]:
    """Put a linear map into the last layers of a model, in each way that may give its scores; yield after each.

    Some classifiers of texts have a dense layer and an activation before the last layer. They let scores through that
    are so small that tanh does not change them; or pairs of scores with the opposite sign, because ReLU, GELU and SiLU
    of x and of -x differ by x.
    """
    layers: list[Any] = [None, *(module for module in model.modules() if isinstance(module, nn.Linear))]
    dense, last = layers[-2:]
    _put(last, weight, bias)
    yield
    if dense is not None and dense.in_features == weight.shape[1]:
        ones, nothing = torch.eye(len(bias)), torch.zeros(len(bias))
        _put(dense, weight * _SMALL, bias * _SMALL)
        _put(last, ones / _SMALL, nothing)
        yield
        _put(dense, torch.cat([weight, -weight]), torch.cat([bias, -bias]))
        _put(last, torch.cat([ones, -ones], dim=1), nothing)
        yield


@torch.no_grad()
def _put(layer: Any, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Set the weights of a layer that has as many outputs and inputs or more; those of the others become 0."""
    if layer.bias is None:
        raise NotExpressed("the classifier of transformers for it has no bias")
    if len(weight) > layer.out_features:
        raise NotExpressed(f"a layer of {layer.out_features} values is too narrow for {len(weight)} scores")
    for parameter, part in ((layer.weight, weight), (layer.bias, bias)):
        parameter.zero_()
        parameter[tuple(map(slice, part.shape))] = part
