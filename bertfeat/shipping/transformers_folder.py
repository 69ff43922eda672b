"""A shipped probe as a model of transformers: `...ForTokenClassification`, or `...ForSequenceClassification`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bertfeat.choices import Level, Pooling, Task, WordPooling
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import checkpoint_errors
from bertfeat.shipping.linear_map import linear_layer
from bertfeat.shipping.one_layer import (
    TEXTS,
    NotExpressed,
    copy_tokenizer,
    load_cut,
    reasons_of_one_layer,
    require_scores,
)

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

# Scores times this power of two, which is exact, are so small that tanh in float32 leaves them as they are.
_SMALL = 2.0**-18
_OF_ONE_TOKEN = (None, WordPooling.FIRST, Pooling.CLS, Pooling.POOLER, Pooling.LASTTOKEN)


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
