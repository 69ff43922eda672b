"""A shipped probe as a model of transformers: `...ForTokenClassification`, or `...ForSequenceClassification`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bertfeat.choices import Level, Pooling, Task, WordPooling
from bertfeat.encoder.checkpoint import Checkpoint
from bertfeat.encoder.loading import no_progress_bars
from bertfeat.errors import checkpoint_errors
from bertfeat.records import Float32Array
from bertfeat.shipping.linear_map import LinearMap
from bertfeat.shipping.one_layer import (
    Comparison,
    NotExpressed,
    copy_tokenizer,
    cut_config,
    refusal_of_feature,
)

if TYPE_CHECKING:
    from bertfeat.probes.fitted import FittedProbe

# Scores times a power of two, which is exact, that tanh leaves as they are in float32.
_SMALL = 2.0**-18
_POOLINGS = (Pooling.CLS, Pooling.POOLER, Pooling.LASTTOKEN)


def refusal(probe: FittedProbe, checkpoint: Checkpoint) -> str | None:
    """Return why the target cannot express a probe, as the end of a sentence; None if it may."""
    spec = probe.spec
    if (reason := refusal_of_feature(probe, checkpoint)) is not None:
        return reason
    if spec.prompt:
        return f"it puts the prompt {spec.prompt!r:.60} before texts, and a model of transformers keeps no prompt"
    if spec.level is Level.SENTENCE:
        is_known = spec.pooling in _POOLINGS
        return None if is_known else f"pooling {spec.pooling} is not the state of one token, which a classifier reads"
    if spec.level is Level.WORD and spec.pooling != WordPooling.FIRST:
        return f"word pooling {spec.pooling} is not the state of one token; extract with `word_pooling='first'`"
    if probe.probe.task is not Task.CLASSIFY:
        return f"task {probe.probe.task} at the {spec.level} level is no classification of tokens"
    if _class_of(probe, checkpoint) is None:
        return f"transformers has no such classifier for models of the type {checkpoint.family.model_type}"
    return None


def write(probe: FittedProbe, checkpoint: Checkpoint, folder: Path) -> None:
    """Write the cut model with the head as its classifier, and the tokenizer."""
    from transformers import AutoTokenizer

    linear = LinearMap.of(probe.probe)
    assert linear is not None
    comparison, model = Comparison(probe, checkpoint, linear), _load(probe, checkpoint)
    with checkpoint_errors(checkpoint.folder, "its tokenizer does not load"):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, local_files_only=True)

    @torch.inference_mode()
    def run() -> list[Float32Array]:
        encoded = (tokenizer(text, return_tensors="pt") for text in comparison.texts)
        return [model(**one).logits.reshape(-1, len(linear.bias)).numpy() for one in encoded]

    calls = _called(model, run)
    comparison.choose(run for _ in _foldings(calls, linear))
    with no_progress_bars():
        model.save_pretrained(folder)
    copy_tokenizer(checkpoint, folder)


def _class_of(probe: FittedProbe, checkpoint: Checkpoint) -> str | None:
    """Return the name of the class of transformers with a classifier for the level of a probe, if there is one."""
    from transformers.models.auto import modeling_auto

    kind = "SEQUENCE" if probe.spec.level is Level.SENTENCE else "TOKEN"
    names: dict[str, str] = getattr(modeling_auto, f"MODEL_FOR_{kind}_CLASSIFICATION_MAPPING_NAMES")
    return names.get(checkpoint.family.model_type)


def _load(probe: FittedProbe, checkpoint: Checkpoint) -> Any:
    """Load the blocks that a probe needs, with a classifier of its outputs whose weights are random."""
    import transformers

    name = _class_of(probe, checkpoint)
    assert name is not None
    with checkpoint_errors(checkpoint.folder, f"{name} does not take its weights"), no_progress_bars():
        model = getattr(transformers, name).from_pretrained(
            checkpoint.folder,
            config=cut_config(probe, checkpoint),
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    return model.eval()


def _called(model: nn.Module, run: Callable[[], object]) -> list[tuple[nn.Linear, int]]:
    """Return the linear layers of a model in the order of their calls, with the number of dimensions of their input."""
    found: list[tuple[nn.Linear, int]] = []
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [
        layer.register_forward_pre_hook(lambda layer, inputs: found.append((layer, inputs[0].ndim))) for layer in layers
    ]
    run()
    for hook in hooks:
        hook.remove()
    return found


def _foldings(calls: Sequence[tuple[nn.Linear, int]], linear: LinearMap) -> Iterator[None]:
    """Put a linear map into the last layers of a model in each way that may give its scores, and yield after each.

    Some classifiers of texts have a dense layer and an activation before the last layer. They let the scores through
    if these are so small that tanh does not change them; or if each comes with its negative, because ReLU, GELU and
    SiLU of x and of -x differ by x.
    """
    weight, bias = torch.from_numpy(linear.weight), torch.from_numpy(linear.bias)
    last = calls[-1][0]
    _put(last, weight, bias)
    yield
    if len(calls) < 2 or calls[-2][1] != 2:  # it sees each token, not a text
        return
    dense, ones = calls[-2][0], torch.eye(len(bias))
    _put(dense, weight * _SMALL, bias * _SMALL)
    _put(last, ones / _SMALL, torch.zeros(len(bias)))
    yield
    _put(dense, torch.cat([weight, -weight]), torch.cat([bias, -bias]))
    _put(last, torch.cat([ones, -ones], dim=1), torch.zeros(len(bias)))
    yield


@torch.no_grad()
def _put(layer: nn.Linear, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Set the weights of a layer that is at least as large; the rest of them become 0."""
    if layer.bias is None:
        raise NotExpressed("the classifier that transformers gives the model has no bias")
    n_outputs, dim = weight.shape
    if n_outputs > layer.out_features or dim > layer.in_features:
        raise NotExpressed(f"{n_outputs} outputs do not fit into a layer of {layer.out_features}")
    layer.weight.zero_()
    layer.bias.zero_()
    layer.weight[:n_outputs, :dim] = weight
    layer.bias[:n_outputs] = bias
