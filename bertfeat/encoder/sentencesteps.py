"""Dense layers and Normalize of a model's own sentence embedding, applied to pooled vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from torch import nn

from bertfeat.encoder.filedigests import weights_digest
from bertfeat.encoder.sentencemodel import DenseStep, NormalizeStep, SentenceModel
from bertfeat.errors import CheckpointError, checkpoint_errors


@dataclass(frozen=True, slots=True)
class LoadedSteps:
    """The steps of a model with their weights.

    Attributes:
        steps: Each step with its arrays by name: float64 on the device, float32 on one without float64 (MPS).
        dtype: The type of the arrays.
        device: Where they are.
    """

    steps: tuple[tuple[DenseStep | NormalizeStep, Mapping[str, torch.Tensor]], ...]
    dtype: torch.dtype
    device: torch.device


def load_steps(model: SentenceModel, device: torch.device | str = "cpu") -> LoadedSteps:
    """Load the weights of a model's dense layers.

    Raises:
        CheckpointError: A file cannot be read, or changed since it was checked.
    """
    place = torch.device(device)
    dtype = torch.float32 if place.type == "mps" else torch.float64
    return LoadedSteps(tuple((step, _arrays(step, place, dtype)) for step in model.steps), dtype, place)


def apply_steps(vectors: torch.Tensor, loaded: LoadedSteps) -> torch.Tensor:
    """Turn pooled vectors into the model's embedding.

    All steps compute in float64 (float32 on MPS) and the result is rounded once: a product of a few rows may add in
    another order than that of many, and in float64 the rounding hides this, but for a last bit now and then.

    Args:
        vectors: float32 (n, modes * hidden).
        loaded: What `load_steps` returned.

    Returns:
        float32 (n, dim), on the device of the steps.
    """
    out = vectors.to(loaded.device, loaded.dtype)
    with torch.inference_mode():
        for step, arrays in loaded.steps:
            out = (
                nn.functional.normalize(out, p=2, dim=-1)
                if isinstance(step, NormalizeStep)
                else _dense(out, step, arrays)
            )
    return out.float()


def _arrays(step: DenseStep | NormalizeStep, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    if isinstance(step, NormalizeStep):
        return {}
    if weights_digest([step.file]) != step.sha256:
        raise CheckpointError(f"{step.file}: the weights changed since they were checked; start the run again")
    with checkpoint_errors(step.file, "its weights do not load"):
        # sentence-transformers keeps these weights as float32, whatever the type in the file.
        return {name: array.float().to(device, dtype) for name, array in load_file(step.file).items()}


def _dense(vectors: torch.Tensor, step: DenseStep, arrays: Mapping[str, torch.Tensor]) -> torch.Tensor:
    activation: nn.Module = getattr(nn, step.activation)()
    out: torch.Tensor = activation(nn.functional.linear(vectors, arrays["linear.weight"], arrays.get("linear.bias")))
    if step.has_residual:
        projection = arrays.get("residual.weight")
        out = out + (vectors if projection is None else nn.functional.linear(vectors, projection))
    return out
