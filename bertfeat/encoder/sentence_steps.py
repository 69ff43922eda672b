"""Dense layers and Normalize of a model's own sentence embedding, applied to pooled vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from safetensors.torch import load_file
from torch import nn

from bertfeat.encoder.file_digests import weights_digest
from bertfeat.encoder.sentence_model import DenseStep, NormalizeStep, SentenceModel
from bertfeat.errors import CheckpointError, checkpoint_errors


def load_steps(model: SentenceModel, device: torch.device | str = "cpu") -> Callable[[torch.Tensor], torch.Tensor]:
    """Load the weights of a model's dense layers, and return what turns pooled vectors into the model's embedding.

    It takes float32 (n, modes * hidden) and returns float32 (n, dim) on the device. All steps compute in float64
    (float32 on MPS, which has no float64) and the result is rounded once: a product of a few rows may add in another
    order than that of many, and in float64 the rounding hides this, but for a last bit now and then.

    Raises:
        CheckpointError: A file cannot be read, or changed since it was checked.
    """
    dtype = torch.float32 if torch.device(device).type == "mps" else torch.float64
    steps = [_normalize if isinstance(step, NormalizeStep) else _dense(step, device, dtype) for step in model.steps]

    def apply(vectors: torch.Tensor) -> torch.Tensor:
        out = vectors.to(device, dtype)
        with torch.inference_mode():
            for step in steps:
                out = step(out)
        return out.float()

    return apply


def _normalize(vectors: torch.Tensor) -> torch.Tensor:
    return nn.functional.normalize(vectors, p=2, dim=-1)


def _dense(step: DenseStep, device: torch.device | str, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    if weights_digest([step.file]) != step.sha256:
        raise CheckpointError(f"{step.file}: the weights changed since they were checked; start the run again")
    with checkpoint_errors(step.file, "its weights do not load"):
        # sentence-transformers keeps these weights as float32, whatever the type in the file.
        arrays = {name: array.float().to(device, dtype) for name, array in load_file(step.file).items()}
    activation: nn.Module = getattr(nn, step.activation)()

    def apply(vectors: torch.Tensor) -> torch.Tensor:
        linear = nn.functional.linear(vectors, arrays["linear.weight"], arrays.get("linear.bias"))
        out: torch.Tensor = activation(linear)
        if step.has_residual:
            projection = arrays.get("residual.weight")
            out = out + (vectors if projection is None else nn.functional.linear(vectors, projection))
        return out

    return apply
