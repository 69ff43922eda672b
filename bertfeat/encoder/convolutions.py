"""Convolutions in whole float32 on CUDA.

torch rounds the inputs of float32 convolutions there to TF32, but not those of matrix products. The switch is
one for the process. The operator below the switch takes it as an argument, which leaves other convolutions alone.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn


def keep_float32(model: nn.Module) -> None:
    """Make the convolutions of a model compute in float32, whatever the process allows for others."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d) and module.padding_mode == "zeros":
            module.forward = partial(_convolve, module)  # type: ignore[method-assign]


def _convolve(layer: nn.Conv1d | nn.Conv2d, states: torch.Tensor) -> torch.Tensor:
    how = layer.stride, layer.padding, layer.dilation, False, layer.output_padding, layer.groups
    cudnn = torch.backends.cudnn
    # The last one is `allow_tf32`.
    flags = cudnn.benchmark, cudnn.deterministic, cudnn.enabled, False
    found: torch.Tensor = torch.ops.aten._convolution.default(states, layer.weight, layer.bias, *how, *flags)
    return found
