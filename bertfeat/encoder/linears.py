"""Linear layers for the CPU, with weights in oneDNN's own layout and GELU in the same operator.

torch changes the layout of a weight for every product. With MiniLM's 384 and 1,536 columns that takes a tenth of the
time on an AMD EPYC, and less on an Intel Xeon. `torch.compile` uses the same operators; no compilation is needed here.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import nn

_TYPES = (torch.float32, torch.bfloat16)
# The number of rows that the layout is chosen for; any number works.
_N_ROWS = 1024
# Narrower layers gain nothing, and LayoutLMv3 reads the weights of some without calling them.
_LEAST_WIDTH = 32


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether linear layers of a type can be packed on a device: on x86-64 with a torch that has oneDNN."""
    return (
        device.type == "cpu"
        and dtype in _TYPES
        and platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and (dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class PackedLinear(nn.Module):
    """A linear layer whose weight has a layout that only oneDNN can read.

    Args:
        linear: The layer to replace.
        activation: `gelu` (the exact one), or `none`.
    """

    def __init__(self, linear: nn.Linear, activation: str = "none") -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data.contiguous(), _N_ROWS)
        bias: torch.Tensor | None = linear.bias
        self.bias = None if bias is None else bias.data
        self.activation = activation

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) for `states` (..., in_features)."""
        # The last argument is the approximation of GELU.
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            states, self.weight, self.bias, self.activation, [], "none"
        )
        return found


@torch.inference_mode()
def pack_linears(model: nn.Module) -> None:
    """Replace every linear layer of a model whose weights, type and device no longer change.

    A layer and its GELU become one where a block names them `dense` and `intermediate_act_fn`, as BERT does.
    """
    for module in [module for module in model.modules() if hasattr(module, "intermediate_act_fn")]:
        activation = module.intermediate_act_fn
        dense = getattr(module, "dense", None)
        if type(dense) is nn.Linear and _is_exact_gelu(activation):
            module.dense = PackedLinear(dense, "gelu")
            module.intermediate_act_fn = nn.Identity()
    for name in [name for name, module in model.named_modules() if type(module) is nn.Linear]:
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        if min(linear.weight.shape) < _LEAST_WIDTH:
            continue
        # Nothing else holds the layer, so that its own weight is freed before the next one is packed.
        model.set_submodule(name, PackedLinear(linear))


def _is_exact_gelu(activation: Any) -> bool:
    from transformers.activations import GELUActivation

    if isinstance(activation, GELUActivation):
        return activation.act is nn.functional.gelu
    return isinstance(activation, nn.GELU) and activation.approximate == "none"
